// Attention of one layer after another for all rows of a step, whatever their policies and wherever
// their KV lies: stops 6a to 6c of README, "Life of
// a token". The order within layer l:
//
//   1. RoPE, append k and v, compress the windows that the new rows complete; NOSA's eviction
//      biases, which every list of pages then carries; InfiniGen's sums and partial keys
//      (infinigen.h)
//   2. rows that choose ahead (Forecast, InfiniGen) choose for l + 1, and their missing blocks
//   start
//      to move
//   3. rows that choose by this layer's own query choose for l, and fetch on need
//   4. wait for the blocks of l, and attend
//   5. finished blocks go to the host
//
// Kinds of rows at layer l:
//   resident   all blocks in frames (residency `device`, or layer 0): one attention call
//   slots      one row of a tiered sequence that selects: blocks in slots, in the same call
//   stream     tiered and dense: all blocks pass through the staging area, group by group
//   chunk      several rows of a tiered sequence that selects: tiles of rows whose blocks fit there
// A row's bits do not depend on its kind (kernels/ops/paged_attention.h).
//
// Thread: the engine's. Ownership: buffers are its own, allocated by Create; the rest is the
// caller's. Failure: Create names size and knob; a step cannot fail.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_policy.h"
#include "engine/attention/infinigen.h"
#include "engine/model/rope_tables.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "memory/layer_residency.h"

namespace augur::engine {

// Sees what attention works on in every layer, for calibration and tests. Called by the engine
// thread inside RunLayer.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // qkv: [rows, row_stride], q heads, k heads (both after RoPE), v heads. input: what they were
  // made of, [rows, hidden]. Valid for the call.
  virtual void Observe(int layer, int rows, const float* qkv, int row_stride,
                       const float* input) = 0;
  // Blocks that a row of the step is to attend to in place of those that its policy chooses:
  // ascending, forced ones among them, at most as many as its budget; empty: the policy's. After
  // Observe, of rows that select and whose blocks are all resident. Valid until the next layer.
  virtual std::span<const int32_t> Route(int /*layer*/, int /*row*/, int /*kv_head*/) { return {}; }
  // What a row of the step attends to in the layer, ascending, forced blocks among them; not told
  // of rows under dense attention. After Observe, rows in order. Valid for the call.
  virtual void ObserveChoice(int /*layer*/, int /*row*/, int /*kv_head*/,
                             std::span<const int32_t> /*blocks*/) {}
};

// NOSA: a bias on the logits of every key, and a choice of blocks in two stages.
struct EvictionOptions {
  std::span<const LayerWeights> weights;  // of all layers; empty: the model has no such heads
  // Of a selection, forced blocks included, how many the query's (or the Forecast's) scores choose;
  // biases choose the others. A request's init + local blocks and its top_k bound it.
  int query_top_k = 0;
};

struct LayerWorkerOptions {
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  kernels::DType kv_dtype = kernels::DType::kF32;
  bool has_forecast = false;  // qkv rows hold Forecast heads
  int max_rows = 0;
  int max_segments = 0;
  int max_context = 0;
  int max_top_k = 0;     // of any request
  int fetch_blocks = 0;  // staging, see memory::ResidencyLimits; a multiple of 16
  bool prefetch = true;  // false: choices made ahead are fetched on need
  int recall_every = 0;  // steps between measurements of the Forecast's recall; 0: never
  int compute_threads = 1;
  float attention_scale = 1.0f;
  RopeAngles rope = {};
  // q_norm and k_norm of all layers; empty: the model has none.
  std::span<const LayerWeights> head_norms = {};
  float head_norm_epsilon = 0.0f;
  // InfiniGen; a null basis: no request uses it. Its shape, rows and tables are filled in by
  // Create.
  InfinigenOptions infinigen;
  EvictionOptions eviction;
  ValueSampling values = {};

  int q_width() const { return num_q_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
  // Floats of a qkv row: q, k, v, then the Forecast for the next layer and, in layer 0, the heads
  // for itself.
  int row_stride() const { return q_width() + (has_forecast ? 4 : 2) * kv_width(); }
};

class LayerWorker {
 public:
  static absl::StatusOr<std::unique_ptr<LayerWorker>> Create(kernels::Backend* backend,
                                                             const LayerWorkerOptions& options,
                                                             memory::KvStore* store,
                                                             memory::ResidencyStats* stats,
                                                             const memory::Clock* clock);
  ~LayerWorker();

  // `segments` stay valid until EndStep.
  void BeginStep(std::span<const StepSegment> segments, int rows);
  // qkv [rows, row_stride] -> attended [rows, q_width]; layers in order. input: what qkv was made
  // of, [rows, hidden]; may be null where no row uses InfiniGen.
  void RunLayer(int layer, float* qkv, float* attended, const float* input = nullptr);
  void EndStep();

  // Null: nobody. It outlives the last step.
  void set_observer(AttentionObserver* observer) { observer_ = observer; }

  // Blocks that the last RunLayer chose, for tests: of `row`, kv head `kv_head`; empty: dense.
  std::span<const int32_t> chosen(int layer, int row, int kv_head) const;

 private:
  // Rows of a segment under one policy.
  struct Piece {
    const StepSegment* segment = nullptr;
    kernels::Segment rows;
    AttentionPolicy policy = AttentionPolicy::kDense;
    bool tiered = false;
    bool chunk = false;    // tiered with more than one row
    bool sampled = false;  // its rows are generated tokens that sample
    bool in_slots() const { return tiered && !chunk; }
    bool selects() const { return policy != AttentionPolicy::kDense; }
  };
  // A segment's place in the step's staged blocks.
  struct Staging {
    int first_place = -1;
    int first_block = 0;
    int end_block = 0;
    // -1 where the block is not staged.
    int place_of(int block) const {
      return first_place < 0 || block < first_block ? -1 : first_place + block - first_block;
    }
  };
  // Choices for one layer: rows of it that are valid are known by their pieces.
  struct Selection {
    std::span<int32_t> blocks;           // [max_rows][kv heads][stride]
    std::span<int32_t> counts;           // [max_rows][kv heads]
    std::span<const std::byte*> pages;   // [max_rows][kv heads][stride]
    std::span<const float*> biases;      // likewise; empty: the model has none
    std::span<const std::byte*> values;  // likewise, of rows that sample; empty: none may
  };

  LayerWorker(kernels::Backend* backend, const LayerWorkerOptions& options, memory::KvStore* store,
              memory::ResidencyStats* stats, const memory::Clock* clock);
  absl::Status Allocate();
  // Memory of the backend for `count` elements; false where there is not enough.
  template <class Element>
  bool Reserve(size_t count, std::span<Element>* to);
  // The request's. One of more blocks than the context has chooses all of them, forced or not.
  kernels::SelectionBudget BudgetOf(const Piece& piece) const {
    const kernels::SelectionBudget& budget = piece.segment->attention->budget;
    if (budget.top_k <= stride_) return budget;
    return {.top_k = stride_, .init = 0, .local = 2};
  }

  void RestoreKeys(const StepSegment& segment);
  void AddKeyTargets(const memory::SequenceKv& kv, int layer);
  void AppendAndCompress(int layer, float* qkv);
  void Compress(int layer);
  // Whether `piece` chooses for `layer` while that layer runs, rather than one before.
  bool ChoosesNow(const Piece& piece, int layer) const;
  bool ChoosesAhead(const Piece& piece, int layer) const;
  // Segments of all pieces for which `wanted` holds, with their pages of scoring keys at `layer`.
  template <class Wanted>
  void GatherSelection(int layer, const Wanted& wanted, bool partial);
  void RunSelection(kernels::SelectBlocksParams params, Selection* selection);
  template <class Wanted>
  void Select(int layer, const Wanted& wanted, AttentionPolicy policy, const float* q, int q_stride,
              Selection* selection);
  void SelectNow(int layer, const float* qkv);
  void SelectAhead(int layer);
  void Request(int layer, memory::TransferKind kind);
  void MeasureRecall(int layer, const float* qkv);
  void Reroute(int layer);
  void ShowChoices(int layer);

  // layer_eviction.cc
  bool has_biases() const { return !options_.eviction.weights.empty(); }
  void AddEvictionSegment(const memory::SequenceKv& kv, int layer, const kernels::Segment& rows,
                          const std::byte* const* pages);
  void RunEvictionBias(int layer);
  void AppendBiases(int layer);
  void RestoreBiases(const StepSegment& segment);

  // layer_sampled.cc
  bool draws_values() const {
    return options_.values.offered() && !options_.values.samples_queries();
  }
  bool has_value_sums() const { return store_->pools().layout.has_value_sums(); }
  absl::Status AllocateSampled();
  void AppendValueSums(int layer);
  void RestoreValueSums(const StepSegment& segment);
  int SamplesOf(const Piece& piece, int layer) const;
  int PositionOf(const Piece& piece, int row) const {
    return piece.rows.first_position + row - piece.rows.first_row;
  }
  void ClearSampled();
  // The row with the lists that are common to all kinds of rows; keys and values are the caller's.
  kernels::SampledSegment* NewSampledRow(const Piece& piece, int row, int layer);
  void AddSampledDense(const Piece& piece, int row, int layer);
  void AddSampledSelection(const Piece& piece, int row, int layer);
  void AddSampledSums(const Piece& piece, int row, int layer, kernels::SampledSegment* segment);
  void RunSampled(int layer, const float* qkv, float* attended);
  kernels::SampledAttentionParams SampledParams(int layer, const float* qkv, float* attended) const;
  void AttendSampledInPlace(int layer, const float* qkv, float* attended);
  void AttendSampledStream(const Piece& piece, int row, int layer, const float* qkv,
                           float* attended);
  void ScoreStream(const Piece& piece, int row, int layer, const float* qkv, float* attended);
  const std::byte* OwnPage(const Piece& piece, int layer, int kv_head, int block);
  void SampleQueries(int layer, float* qkv);

  // layer_infinigen.cc
  absl::Status CreateInfinigen();
  void TrackInfinigen(int layer, const float* qkv);
  void AppendPartialKeys(memory::SequenceKv* kv, int layer, const kernels::Segment& tokens,
                         const Staging* staging);
  void RestorePartialKeys(const StepSegment& segment);
  void EndInfinigen(const StepSegment& segment);
  void ApproximateNext(int layer, const float* input);
  template <class Wanted>
  void SelectInfinigen(int layer, const Wanted& wanted, Selection* selection);

  void Attend(int layer, const float* qkv, float* attended);
  void AttendInPlace(int layer, const float* qkv, float* attended);
  void AttendStream(const Piece& piece, int layer, const float* qkv, float* attended);
  void AttendChunk(const Piece& piece, int layer, const float* qkv, float* attended);
  void AttendTile(const Piece& piece, int first_row, int end_row, int layer, const float* qkv,
                  float* attended);
  void EndChunk(const Piece& piece, int layer);
  void BeginChunk(const Piece& piece, int layer);
  void WriteBehind(int layer);
  kernels::PagedAttentionParams AttentionParams(const float* qkv, float* attended) const;
  void AddResidentList(const Piece& piece, int layer);
  // The row's list of chosen blocks, whose pages are filled in.
  void AddSelectedRow(const Piece& piece, int row, int layer, Selection* selection);
  // The segment's biases, [kv heads][end - first], of blocks [first, end); null: none.
  const float* const* AddBiasList(const memory::SequenceKv& kv, int layer, int first, int end);

  size_t list_at(int row, int kv_head) const {
    return (size_t(row) * options_.num_kv_heads + kv_head) * stride_;
  }

  kernels::Backend* const backend_;
  const LayerWorkerOptions options_;
  memory::KvStore* const store_;
  memory::ResidencyStats* const stats_;
  const memory::Clock* const clock_;
  memory::LayerResidency residency_;
  std::unique_ptr<Infinigen> infinigen_;  // null: no basis
  AttentionObserver* observer_ = nullptr;
  const int stride_;  // blocks of a selection

  int rows_ = 0;
  int64_t step_ = 0;
  std::span<const StepSegment> segments_;
  std::vector<Piece> pieces_;
  std::vector<Staging> staging_;  // [segments]
  int staged_places_ = 0;

  std::vector<void*> allocations_;
  std::array<std::span<float>, 2>
      forecasts_;                        // [max_rows, kv_width]: made by the layer of that parity
  std::span<float> states_;              // [max_rows][q heads][AttentionStateFloats]
  std::array<Selection, 2> selections_;  // of the layer of that parity
  Selection recall_;

  // Scratch of one layer, kept for its capacity.
  std::vector<std::byte*> append_pages_;
  std::vector<const std::byte*> source_pages_;
  std::vector<std::byte*> key_targets_;
  std::vector<const std::byte*> key_pages_;
  std::vector<const std::byte*> list_pages_;
  std::vector<const float*> list_biases_;
  std::vector<float*> bias_targets_;
  std::vector<float*> mean_targets_;
  std::vector<const float*> mean_pages_;
  std::vector<kernels::AppendSegment> append_segments_;
  std::vector<kernels::CompressSegment> compress_segments_;
  std::vector<kernels::EvictionSegment> eviction_segments_;
  std::vector<kernels::SelectSegment> select_segments_;
  std::vector<kernels::ChannelSegment> channel_segments_;
  std::vector<kernels::QuerySegment> query_segments_;
  std::vector<kernels::AttentionSegment> attention_segments_;
  std::vector<memory::BlockRequest> requests_;
  std::vector<std::vector<int32_t>> tile_blocks_;  // [kv heads]
  std::vector<std::vector<int32_t>> grown_blocks_;

  // Of rows that sample.
  std::span<float> stream_scores_;     // [q heads][max_context rounded up to blocks]
  std::span<float> own_sums_;          // [kv heads][head_dim]: of a row in the middle of a chunk
  std::vector<int32_t> entry_rows_;    // [sampled rows][kv heads][list stride]
  std::vector<int32_t> whole_counts_;  // [sampled rows][kv heads]: entries of lists of all blocks
  std::vector<const Piece*> sampled_pieces_;  // of each sampled segment
  std::vector<const std::byte*> sampled_keys_;
  std::vector<const std::byte*> sampled_values_;
  std::vector<const float*> sampled_sums_;
  std::vector<float*> sum_targets_;
  std::vector<kernels::SampledSegment> sampled_segments_;
  std::vector<kernels::SampledCounts> sampled_counts_;
  std::vector<kernels::SampleQueriesSegment> sampled_queries_;
};

template <class Element>
bool LayerWorker::Reserve(size_t count, std::span<Element>* to) {
  void* data = backend_->Allocate(count * sizeof(Element));
  if (data == nullptr) return false;
  allocations_.push_back(data);
  *to = {static_cast<Element*>(data), count};
  return true;
}

}  // namespace augur::engine
