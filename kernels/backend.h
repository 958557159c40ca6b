// One virtual an op: what the engine needs computed, without a word about where. Implementations
// are twins (kernels/cpu and kernels/cuda: the same calls with the same parameter structs and test
// bodies).
//
// Memory: every pointer in parameters, and every pointer that they lead to, is the backend's own
// memory: from Allocate (the device's, which the host may not touch) or from AllocateHost (both
// may). On the CPU any memory will do.
// Thread: calls come from one thread at a time, the engine's; ops are in order, each sees the
// writes of those before it. Results may be read by the host after Synchronize(). Ownership:
// Allocate/Free pair; every other pointer is the caller's and stays valid until Synchronize().
// Failure: a bad shape is our bug and a CHECK; a device that breaks is reported by
// device_failure.h and does not come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/adjust_logits.h"
#include "kernels/ops/choose_channels.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/count_value_reads.h"
#include "kernels/ops/drive_choice.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/eviction_bias.h"
#include "kernels/ops/gated_silu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/list_page_copies.h"
#include "kernels/ops/list_spills.h"
#include "kernels/ops/map_pages.h"
#include "kernels/ops/open_tails.h"
#include "kernels/ops/page_copy.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/place_blocks.h"
#include "kernels/ops/project_keys.h"
#include "kernels/ops/project_queries.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/sample_queries.h"
#include "kernels/ops/sample_tokens.h"
#include "kernels/ops/sampled_attention.h"
#include "kernels/ops/select_blocks.h"
#include "kernels/ops/stamp.h"
#include "kernels/ops/sum_channels.h"
#include "kernels/ops/sum_values.h"
#include "kernels/ops/top_logprobs.h"

namespace augur::kernels {

enum class Lane {
  kSelect,  // what the next layer will read
  kFetch,   // pages from the host; before all others where they compete
  kSpill,   // pages to the host
};
inline constexpr int kNumLanes = 3;

class TrainingOps;  // training_ops.h

// Ops recorded by Backend::Record, to be run again and again.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
};

// One launch of a StepGraph on a device's own clock, in seconds.
struct LaunchTime {
  double since_last = 0;  // from the end of the launch before to this one's start; 0 for the first
  double duration = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // For the start-up line and bench records, e.g. "cpu avx512 x2".
  virtual std::string Describe() const = 0;
  // Ops run on a device with memory of its own, behind the host.
  virtual bool IsDevice() const = 0;

  // Uninitialised memory that ops may read and write, 64-byte aligned; null when there is not
  // enough.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;
  // What a device's memory still has; elsewhere 0.
  virtual int64_t FreeBytes() const = 0;
  // Likewise, memory that the host may touch as well (pinned, where ops run on a device); freed by
  // Free, too. Every use of it by an op crosses the link to the device.
  virtual void* AllocateHost(size_t bytes) = 0;
  // In order with the ops, between any two of these kinds of memory. `from` may be any host memory
  // that stays as it is until Synchronize().
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;

  virtual std::unique_ptr<PackedWeight> PackWeight(const WeightSource& source) = 0;
  // Of x of a Linear whose weight has this dtype: what the ops before it should write.
  virtual DType ActivationDType(DType weight) const = 0;

  virtual void Embedding(const EmbeddingParams& params) = 0;
  virtual void RmsNorm(const RmsNormParams& params) = 0;
  virtual void Linear(const LinearParams& params) = 0;
  virtual void RopeAppend(const RopeAppendParams& params) = 0;
  virtual void CompressKeys(const CompressKeysParams& params) = 0;
  // Two ops that follow each other, with the bits that they have; a backend may make one pass of
  // them. GatedLinear: silu.gate_up is what `linear` writes, all of its columns, and may be
  // anything afterwards. AppendAndCompress: segments have one row at most, and the i-th of both are
  // the same sequence's (compress.h's may have more, where earlier windows are lacking).
  virtual void GatedLinear(const LinearParams& linear, const GatedSiluParams& silu) {
    Linear(linear);
    GatedSilu(silu);
  }
  virtual void AppendAndCompress(const RopeAppendParams& append,
                                 const CompressKeysParams& compress) {
    RopeAppend(append);
    CompressKeys(compress);
  }
  virtual void SelectBlocks(const SelectBlocksParams& params) = 0;
  virtual void SumChannels(const SumChannelsParams& params) = 0;
  virtual void ChooseChannels(const ChooseChannelsParams& params) = 0;
  virtual void ProjectKeys(const ProjectKeysParams& params) = 0;
  virtual void ProjectQueries(const ProjectQueriesParams& params) = 0;
  virtual void EvictionBias(const EvictionBiasParams& params) = 0;
  virtual void PagedAttention(const PagedAttentionParams& params) = 0;
  // Not built for CUDA yet, where calling one is a CHECK.
  virtual void SampledAttention(const SampledAttentionParams& params);
  virtual void SumValues(const SumValuesParams& params);
  virtual void SampleQueries(const SampleQueriesParams& params);
  virtual void GatedSilu(const GatedSiluParams& params) = 0;
  virtual void CountTokens(const CountTokensParams& params) = 0;
  virtual void AdjustLogits(const AdjustLogitsParams& params) = 0;
  virtual void SampleTokens(const SampleTokensParams& params) = 0;
  virtual void TopLogprobs(const TopLogprobsParams& params) = 0;
  virtual void MapPages(const MapPagesParams& params) = 0;
  virtual void DriveChoice(const DriveChoiceParams& params) = 0;
  virtual void PlaceBlocks(const PlaceBlocksParams& params) = 0;
  virtual void OpenTails(const OpenTailsParams& params) = 0;
  virtual void CountValueReads(const CountValueReadsParams& params) = 0;
  virtual void ListSpills(const ListSpillsParams& params) = 0;
  virtual void ListPageCopies(const ListPageCopiesParams& params) = 0;
  virtual void CopyPages(const PageCopyParams& params) = 0;
  virtual void Stamp(const StampParams& params) = 0;

  // In order with the others; made when first asked for, and outlived by this.
  virtual TrainingOps* training_ops();

  // Orders of ops beside this one, so that copies and what chooses them run while the ops of this
  // order compute. On a lane only selection's ops, CopyPages and its lists, Copy, Mark, Passed and
  // Wait may be called. Where everything runs at once, as on the CPU, a lane is the backend itself.
  virtual Backend* OnLane(Lane lane) = 0;
  // What is called on this from now on runs after everything that was called on `other` so far.
  // Within Record all lanes must have been followed, directly or not, by the recorded order.
  virtual void Follow(Backend* other) = 0;

  // Ops and Copies that `ops` calls on the backend it is given, kept with their parameters; what
  // the parameters point to is read at each Launch. Nothing runs yet.
  virtual std::unique_ptr<StepGraph> Record(const std::function<void(Backend*)>& ops) = 0;
  // Runs them, in order with other ops.
  virtual void Launch(const StepGraph& graph) = 0;

  // This point in the order of ops, for Wait; 0 is never one.
  virtual uint64_t Mark() = 0;
  // Until everything before the mark has run. At most kMarks younger marks may exist; 0: returns at
  // once.
  virtual void Wait(uint64_t mark) = 0;
  // Whether Wait would return at once.
  virtual bool Passed(uint64_t mark) = 0;
  static constexpr uint64_t kMarks = 64;
  virtual void Synchronize() = 0;

  // For benches: a device times the next `count` launches, all of which TakeLaunchTimes() waits
  // for and returns, in order. Nowhere else are launches timed, and nothing is returned.
  virtual void TimeLaunches(int /*count*/) {}
  virtual std::vector<LaunchTime> TakeLaunchTimes() { return {}; }
};

enum class CpuIsa { kAuto, kGeneric, kAvx2, kAvx512 };  // kAuto: the best that this CPU has

struct CpuBackendOptions {
  int num_threads = 1;  // worker threads, the calling thread among them; at least 1
  CpuIsa isa =
      CpuIsa::kAuto;  // a wish beyond the CPU's means is a CHECK; tests force the smaller ones
};

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options);

// What kAuto picks here.
CpuIsa DetectCpuIsa();

}  // namespace augur::kernels
