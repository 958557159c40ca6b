// The CUDA backend: Backend's ops as kernels on one stream of one device. Each op is one file
// beside this one, named after it; files that hold only device code are the op's parts.
//
// Thread: as Backend. Ownership: its stream, cuBLASLt handle and scratch, all made at start; an op
// allocates nothing and does not synchronise, so any op can be recorded into a graph. Failure: a
// CUDA error is a broken device (device_failure.h).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/make_cuda_backend.h"

namespace augur::kernels {

class DecodeAttention;   // decode_attention.h
class LinearPlans;       // linear_plans.h
class PinnedMemory;      // pinned_memory.h
class PrefillAttention;  // prefill_attention.h
class PrefillSelection;  // prefill_selection.h
class SampledDecode;     // sampled_attention.h
class WeightStaging;     // packed_weight.h

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaBackendOptions& options);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string Describe() const override;
  bool IsDevice() const override { return true; }
  void* Allocate(size_t bytes) override;
  void Free(void* data) override;
  int64_t FreeBytes() const override;
  void* AllocateHost(size_t bytes) override;
  void Copy(void* to, const void* from, size_t bytes) override;
  std::unique_ptr<PackedWeight> PackWeight(const WeightSource& source) override;
  DType ActivationDType(DType weight) const override { return weight; }

  void Embedding(const EmbeddingParams& params) override;
  void RmsNorm(const RmsNormParams& params) override;
  void Linear(const LinearParams& params) override;
  void RopeAppend(const RopeAppendParams& params) override;
  void CompressKeys(const CompressKeysParams& params) override;
  void GatedLinear(const LinearParams& linear, const GatedSiluParams& silu) override;
  void AppendAndCompress(const RopeAppendParams& append,
                         const CompressKeysParams& compress) override;
  void PagedAttention(const PagedAttentionParams& params) override;
  void SampledAttention(const SampledAttentionParams& params) override;
  void SumValues(const SumValuesParams& params) override;
  void GatedSilu(const GatedSiluParams& params) override;
  void SelectBlocks(const SelectBlocksParams& params) override;
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

  void SumChannels(const SumChannelsParams& params) override;
  void ChooseChannels(const ChooseChannelsParams& params) override;
  void ProjectKeys(const ProjectKeysParams& params) override;
  void ProjectQueries(const ProjectQueriesParams& params) override;
  void EvictionBias(const EvictionBiasParams& params) override;

  TrainingOps* training_ops() override;

  Backend* OnLane(Lane lane) override { return lanes_.at(static_cast<size_t>(lane)).get(); }
  void Follow(Backend* other) override;
  std::unique_ptr<StepGraph> Record(const std::function<void(Backend*)>& ops) override;
  void Launch(const StepGraph& graph) override;
  uint64_t Mark() override;
  void Wait(uint64_t mark) override;
  bool Passed(uint64_t mark) override;
  void Synchronize() override;
  void TimeLaunches(int count) override;
  std::vector<LaunchTime> TakeLaunchTimes() override;

  cudaStream_t stream() const { return stream_; }
  int num_sms() const { return num_sms_; }

 private:
  // A lane of `main`: a stream of its own and what selection needs.
  CudaBackend(const CudaBackend& main, Lane lane);
  void CreateStream(int priority);
  void BindThread() const;
  // By Allocate or AllocateHost: kernels reach it.
  bool IsAllocated(const void* data, size_t bytes) const;

  const CudaBackendOptions options_;
  cudaStream_t stream_ = nullptr;
  int num_sms_ = 0;
  std::string name_;
  std::map<const std::byte*, size_t> allocations_;  // what the caller has of us: begin, bytes
  std::array<cudaEvent_t, kMarks> marks_{};         // mark m is in m % kMarks
  uint64_t last_mark_ = 0;
  uint64_t passed_mark_ = 0;        // the youngest that a Wait has seen
  cudaEvent_t followed_ = nullptr;  // of the last Follow, on the stream followed
  // PlaceBlocks' count of CTAs and copies, 0 between calls; so calls of one order never overlap.
  unsigned long long* place_tickets_ = nullptr;
  std::array<std::unique_ptr<CudaBackend>, kNumLanes> lanes_;  // of the main order
  struct TimedLaunch {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  std::vector<TimedLaunch> timed_launches_;
  size_t num_timed_ = 0;                                   // that have been launched
  std::map<void*, std::unique_ptr<PinnedMemory>> pinned_;  // large AllocateHosts
  std::unique_ptr<LinearPlans> linear_plans_;
  std::unique_ptr<WeightStaging> weight_staging_;  // made for the first weight
  std::unique_ptr<DecodeAttention> decode_attention_;
  std::unique_ptr<SampledDecode> sampled_decode_;
  std::unique_ptr<PrefillAttention> prefill_attention_;
  std::unique_ptr<TrainingOps> training_ops_;
  std::unique_ptr<PrefillSelection> prefill_selection_;  // of the main order and of kSelect
};

}  // namespace augur::kernels
