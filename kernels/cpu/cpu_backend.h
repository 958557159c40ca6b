// The CPU backend: Backend's ops by the kernels of one instruction set on a team of threads. Each
// op is one file beside this one (linear.cc, paged_attention.cc, ...); the inner loops are in isa/.
//
// Thread: as Backend; ops have finished when they return, so Synchronize() does nothing.
// Ownership: owns its threads and scratch. Scratch is bounded and allocated here, at start: a
// thread has AttentionScratchFloats(256) and kLinearScratchFloats (0.9 MB), and
// kPartialBytesPerThread for split attention; SampleTokens keeps 12 bytes a thread for each token
// of the largest vocabulary seen; SelectBlocks, from its first use on, 1 MiB a thread for scores or
// the next power of two of what one token of the longest sequence seen needs (4 bytes for each head
// of a group and key: 512 KB for 16 heads and the 8,192 compressed keys of 128 Ki tokens), and
// about 1 KiB for each of its blocks; PagedAttention keeps 40 bytes for each (row, kv head) with a
// list of its own in the largest call seen; SampledAttention keeps scores of as many rows as fit
// kSampledScoreBytes, or of one where that is more (4 bytes for each query head and token), and
// lists of what was drawn. Failure: a bad shape is a CHECK.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/value_sampling.h"

namespace augur::kernels {

// The table for an ISA that this CPU has; kAuto picks the best. CHECKs that the CPU can run it.
const IsaKernels& KernelsFor(CpuIsa isa);

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options);
  ~CpuBackend() override;

  std::string Describe() const override;
  bool IsDevice() const override { return false; }
  void* Allocate(size_t bytes) override;
  void Free(void* data) override;
  int64_t FreeBytes() const override { return 0; }
  void* AllocateHost(size_t bytes) override { return Allocate(bytes); }
  void Copy(void* to, const void* from, size_t bytes) override;
  std::unique_ptr<PackedWeight> PackWeight(const WeightSource& source) override;
  DType ActivationDType(DType) const override { return DType::kF32; }

  void Embedding(const EmbeddingParams& params) override;
  void RmsNorm(const RmsNormParams& params) override;
  void Linear(const LinearParams& params) override;
  void RopeAppend(const RopeAppendParams& params) override;
  void CompressKeys(const CompressKeysParams& params) override;
  void SelectBlocks(const SelectBlocksParams& params) override;
  void SumChannels(const SumChannelsParams& params) override;
  void ChooseChannels(const ChooseChannelsParams& params) override;
  void ProjectKeys(const ProjectKeysParams& params) override;
  void ProjectQueries(const ProjectQueriesParams& params) override;
  void EvictionBias(const EvictionBiasParams& params) override;
  void PagedAttention(const PagedAttentionParams& params) override;
  void SampledAttention(const SampledAttentionParams& params) override;
  void SumValues(const SumValuesParams& params) override;
  void SampleQueries(const SampleQueriesParams& params) override;
  void GatedSilu(const GatedSiluParams& params) override;
  void CountTokens(const CountTokensParams& params) override;
  void AdjustLogits(const AdjustLogitsParams& params) override;
  void SampleTokens(const SampleTokensParams& params) override;
  void TopLogprobs(const TopLogprobsParams& params) override;
  void MapPages(const MapPagesParams& params) override;
  void DriveChoice(const DriveChoiceParams& params) override;
  void PlaceBlocks(const PlaceBlocksParams& params) override;
  void OpenTails(const OpenTailsParams& params) override;
  void CountValueReads(const CountValueReadsParams& params) override;
  void ListSpills(const ListSpillsParams& params) override;
  void ListPageCopies(const ListPageCopiesParams& params) override;
  void CopyPages(const PageCopyParams& params) override;
  void Stamp(const StampParams& params) override;

  TrainingOps* training_ops() override;

  Backend* OnLane(Lane) override { return this; }
  void Follow(Backend*) override {}

  std::unique_ptr<StepGraph> Record(const std::function<void(Backend*)>& ops) override;
  void Launch(const StepGraph& graph) override;

  uint64_t Mark() override { return 1; }
  void Wait(uint64_t) override {}
  bool Passed(uint64_t) override { return true; }
  void Synchronize() override {}

 private:
  // What SampleTokens needs for one row at a time.
  struct SamplingScratch {
    std::vector<float> weights;   // [vocab]
    std::vector<int32_t> tokens;  // [vocab]
  };

  // One work item of PagedAttention. The span is complete but for its scratch.
  struct AttentionItem {
    AttentionSpan span;
    int64_t cost = 0;  // in query rows x blocks
  };

  // One (segment, kv head) of SampledAttention.
  struct SampledItem {
    int segment = 0;
    int kv_head = 0;
    float* scores = nullptr;  // [heads][stride]
    size_t stride = 0;
  };
  // Some entries of an item whose keys are scored together.
  struct ScoreItem {
    int item = 0;
    int begin = 0;
    int end = 0;
  };
  // What drawing and gathering need for one item at a time.
  struct DrawScratch {
    std::vector<HeadDistribution> group;
    std::vector<std::vector<ValueDraw>> draws;  // [heads]
    std::vector<size_t> next;                   // [heads] into draws
    std::vector<float> probabilities;
    std::vector<int32_t> tokens;  // drawn of one entry
    std::vector<float> weights;   // [tokens][heads]
    std::vector<std::byte> rows;  // [tokens][head_dim], where they lay in an fp8 page
    std::vector<float> mass;      // [heads] of an entry, drawn
    std::vector<float> sums;      // [2][heads][padded]: of some entries, of those before
    SampledCounts counts;
  };

  // One window of CompressKeys: its two halves of 16 keys and its place.
  struct CompressItem {
    const std::byte* first = nullptr;  // page
    const std::byte* second = nullptr;
    int first_token = 0;  // of the page, from which on 16 are read
    int second_token = 0;
    std::byte* key = nullptr;
  };

  // One work item of EvictionBias: the segment's rows in one block.
  struct EvictionItem {
    const EvictionSegment* segment = nullptr;
    int block = 0;
  };

  // One work item of SelectBlocks: some tokens of a segment whose keys are scored together.
  struct SelectItem {
    const SelectSegment* segment = nullptr;
    int kv_head = 0;
    int first_token = 0;  // of the segment
    int num_tokens = 0;
  };

  // What SelectBlocks needs for one item at a time.
  struct SelectScratch {
    AlignedBuffer scores;             // [tiles][query rows of the item][64]
    std::vector<float> block_scores;  // [tokens of the item][blocks]
    std::vector<float> biases;        // [blocks]
    std::vector<float> ranked;        // [blocks]
  };

  // body(first_row, end_row, thread) over all rows, in as many items as pay for row_cost (floats
  // touched).
  template <class Body>
  void ForRows(int rows, int64_t row_cost, const Body& body);

  void SampleRow(const SampleTokensParams& params, int row, SamplingScratch& scratch) const;
  void PlanCompression(const CompressKeysParams& params, const CompressSegment& segment);
  void PlanSelection(const SelectBlocksParams& params);
  void ScoreCandidates(const SelectBlocksParams& params, const SelectItem& item, int thread);
  void ChooseBlocks(const SelectBlocksParams& params, const SelectItem& item, int token,
                    float* scores, SelectScratch& scratch) const;
  int CountListTokens(const PagedAttentionParams& params, int first) const;
  void PlanTokenLists(const PagedAttentionParams& params, int first, int count);
  void PlanChoices(const PagedAttentionParams& params, const AttentionSegment& segment);
  void PlanAttention(const PagedAttentionParams& params);
  void SplitLongSpans(int head_dim);
  const int32_t* SampledBlocks(const SampledAttentionParams& params, const SampledItem& item) const;
  void CountBlocks(const SampledAttentionParams& params);
  int PlanSampled(const SampledAttentionParams& params, int first);
  void ScoreSampled(const SampledAttentionParams& params);
  void DrawAndGather(const SampledAttentionParams& params, const SampledItem& item,
                     DrawScratch& scratch) const;
  void DrawItem(const SampledAttentionParams& params, const SampledItem& item,
                DrawScratch& scratch) const;
  void GatherItem(const SampledAttentionParams& params, const SampledItem& item,
                  DrawScratch& scratch) const;
  static void UnpackDrawn(const SampledAttentionParams& params, const std::byte* values,
                          DrawScratch& scratch);
  int GatherEntry(const SampledAttentionParams& params, const SampledItem& item, int entry,
                  DrawScratch& scratch) const;

  const IsaKernels& isa_;
  ThreadPool pool_;
  std::vector<AlignedBuffer> thread_scratch_;      // one a thread
  AlignedBuffer partials_;                         // states of split attention spans
  std::vector<SamplingScratch> sampling_scratch_;  // one a thread
  std::vector<SelectScratch> select_scratch_;      // one a thread
  std::vector<AttentionItem> attention_items_;     // kept for its capacity
  std::vector<AttentionTokenList> token_lists_;    // likewise
  std::vector<CompressItem> compress_items_;       // likewise
  std::vector<EvictionItem> eviction_items_;       // likewise
  std::vector<SelectItem> select_items_;           // likewise
  std::vector<AttentionSpan> merge_spans_;         // likewise
  std::vector<int64_t> place_victims_;             // likewise
  AlignedBuffer sampled_scores_;                   // of the items under way
  std::vector<AlignedBuffer> score_scratch_;       // one a thread, for SampledAttention
  std::vector<DrawScratch> draw_scratch_;          // likewise
  std::vector<SampledItem> sampled_items_;         // kept for its capacity
  std::vector<ScoreItem> score_items_;             // likewise
  std::vector<SampledCounts> item_counts_;         // likewise
  std::unique_ptr<TrainingOps> training_ops_;
  std::vector<int32_t> every_block_;  // 0, 1, ...: of lists that name no blocks
};

// Below this many floats an item costs less than handing it to another thread (about a
// microsecond).
inline constexpr int64_t kFloatsPerRowItem = 4096;

template <class Body>
void CpuBackend::ForRows(int rows, int64_t row_cost, const Body& body) {
  const int64_t affordable = (rows * row_cost + kFloatsPerRowItem - 1) / kFloatsPerRowItem;
  const int64_t wanted = int64_t{4} * pool_.num_threads();  // enough to even out
  int items = static_cast<int>(affordable < wanted ? affordable : wanted);
  if (items > rows) items = rows;
  pool_.ParallelFor(items, [&](int item, int thread) {
    const int first = static_cast<int>(int64_t{item} * rows / items);
    const int end = static_cast<int>(int64_t{item + 1} * rows / items);
    body(first, end, thread);
  });
}

}  // namespace augur::kernels
