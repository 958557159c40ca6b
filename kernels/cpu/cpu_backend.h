// The CPU backend: Backend's ops by the kernels of one instruction set on a team of threads. Each
// op is one file beside this one (linear.cc, paged_attention.cc, ...); the inner loops are in isa/.
//
// Thread: as Backend; ops have finished when they return, so Synchronize() does nothing.
// Ownership: owns its threads and scratch. Scratch is bounded and allocated here, at start: a
// thread has AttentionScratchFloats(256) and kLinearScratchFloats (0.9 MB), and
// kPartialBytesPerThread for split attention; SampleTokens keeps 12 bytes a thread for each token
// of the largest vocabulary seen. Failure: a bad shape is a CHECK.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace augur::kernels {

// The table for an ISA that this CPU has; kAuto picks the best. CHECKs that the CPU can run it.
const IsaKernels& KernelsFor(CpuIsa isa);

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuBackendOptions& options);
  ~CpuBackend() override;

  std::string Describe() const override;
  void* Allocate(size_t bytes) override;
  void Free(void* data) override;
  std::unique_ptr<PackedWeight> PackWeight(const WeightSource& source) override;

  void Embedding(const EmbeddingParams& params) override;
  void RmsNorm(const RmsNormParams& params) override;
  void Linear(const LinearParams& params) override;
  void RopeAppend(const RopeAppendParams& params) override;
  void PagedAttention(const PagedAttentionParams& params) override;
  void GatedSilu(const GatedSiluParams& params) override;
  void SampleTokens(const SampleTokensParams& params) override;

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
    int64_t cost = 0;       // in query rows x blocks
    bool is_split = false;  // then its groups go to partials, and a second pass merges them
  };

  // body(first_row, end_row, thread) over all rows, in as many items as pay for row_cost (floats
  // touched).
  template <class Body>
  void ForRows(int rows, int64_t row_cost, const Body& body);

  void SampleRow(const SampleTokensParams& params, int row, SamplingScratch& scratch) const;
  void PlanAttention(const PagedAttentionParams& params);
  void SplitLongSpans(int head_dim);

  const IsaKernels& isa_;
  ThreadPool pool_;
  std::vector<AlignedBuffer> thread_scratch_;      // one a thread
  AlignedBuffer partials_;                         // states of split attention spans
  std::vector<SamplingScratch> sampling_scratch_;  // one a thread
  std::vector<AttentionItem> attention_items_;     // kept for its capacity
  std::vector<AttentionSpan> merge_spans_;         // likewise
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
