// Backend::Record for the CPU: a backend that keeps calls, with their parameters, instead of making
// them. What a CUDA graph is to the device.
//
// Thread: as Backend. Ownership: the calls; the backend that will make them is the caller's.
// Failure: asking it for memory, weights or a wait is a CHECK, as it would be while a graph is
// captured.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/check.h"

namespace augur::kernels {

class RecordedCalls final : public StepGraph {
 public:
  std::vector<std::function<void(Backend*)>> calls;
};

class CallRecorder final : public Backend {
 public:
  explicit CallRecorder(RecordedCalls* to) : to_(to) {}

  std::string Describe() const override { return "recorder"; }
  bool IsDevice() const override { return false; }
  void* Allocate(size_t) override { return Never(); }
  void Free(void*) override { Never(); }
  int64_t FreeBytes() const override { return 0; }
  void* AllocateHost(size_t) override { return Never(); }
  void Copy(void* to, const void* from, size_t bytes) override {
    to_->calls.push_back([=](Backend* backend) { backend->Copy(to, from, bytes); });
  }
  std::unique_ptr<PackedWeight> PackWeight(const WeightSource&) override {
    Never();
    return nullptr;
  }
  DType ActivationDType(DType) const override { return DType::kF32; }

  void Embedding(const EmbeddingParams& params) override { Keep(&Backend::Embedding, params); }
  void RmsNorm(const RmsNormParams& params) override { Keep(&Backend::RmsNorm, params); }
  void Linear(const LinearParams& params) override { Keep(&Backend::Linear, params); }
  void RopeAppend(const RopeAppendParams& params) override { Keep(&Backend::RopeAppend, params); }
  void CompressKeys(const CompressKeysParams& params) override {
    Keep(&Backend::CompressKeys, params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    Keep(&Backend::SelectBlocks, params);
  }
  void SumChannels(const SumChannelsParams& params) override {
    Keep(&Backend::SumChannels, params);
  }
  void ChooseChannels(const ChooseChannelsParams& params) override {
    Keep(&Backend::ChooseChannels, params);
  }
  void ProjectKeys(const ProjectKeysParams& params) override {
    Keep(&Backend::ProjectKeys, params);
  }
  void ProjectQueries(const ProjectQueriesParams& params) override {
    Keep(&Backend::ProjectQueries, params);
  }
  void EvictionBias(const EvictionBiasParams& params) override {
    Keep(&Backend::EvictionBias, params);
  }
  void PagedAttention(const PagedAttentionParams& params) override {
    Keep(&Backend::PagedAttention, params);
  }
  void SampledAttention(const SampledAttentionParams& params) override {
    Keep(&Backend::SampledAttention, params);
  }
  void SumValues(const SumValuesParams& params) override { Keep(&Backend::SumValues, params); }
  void SampleQueries(const SampleQueriesParams& params) override {
    Keep(&Backend::SampleQueries, params);
  }
  void GatedSilu(const GatedSiluParams& params) override { Keep(&Backend::GatedSilu, params); }
  void CountTokens(const CountTokensParams& params) override {
    Keep(&Backend::CountTokens, params);
  }
  void AdjustLogits(const AdjustLogitsParams& params) override {
    Keep(&Backend::AdjustLogits, params);
  }
  void SampleTokens(const SampleTokensParams& params) override {
    Keep(&Backend::SampleTokens, params);
  }
  void TopLogprobs(const TopLogprobsParams& params) override {
    Keep(&Backend::TopLogprobs, params);
  }
  void MapPages(const MapPagesParams& params) override { Keep(&Backend::MapPages, params); }
  void DriveChoice(const DriveChoiceParams& params) override {
    Keep(&Backend::DriveChoice, params);
  }
  void PlaceBlocks(const PlaceBlocksParams& params) override {
    Keep(&Backend::PlaceBlocks, params);
  }
  void OpenTails(const OpenTailsParams& params) override { Keep(&Backend::OpenTails, params); }
  void CountValueReads(const CountValueReadsParams& params) override {
    Keep(&Backend::CountValueReads, params);
  }
  void ListSpills(const ListSpillsParams& params) override { Keep(&Backend::ListSpills, params); }
  void ListPageCopies(const ListPageCopiesParams& params) override {
    Keep(&Backend::ListPageCopies, params);
  }
  void CopyPages(const PageCopyParams& params) override { Keep(&Backend::CopyPages, params); }
  void Stamp(const StampParams& params) override { Keep(&Backend::Stamp, params); }

  Backend* OnLane(Lane) override { return this; }
  void Follow(Backend*) override {}

  std::unique_ptr<StepGraph> Record(const std::function<void(Backend*)>&) override {
    Never();
    return nullptr;
  }
  void Launch(const StepGraph&) override { Never(); }
  uint64_t Mark() override { return Never() != nullptr; }
  void Wait(uint64_t) override { Never(); }
  bool Passed(uint64_t) override { return Never() != nullptr; }
  void Synchronize() override { Never(); }

 private:
  static void* Never() {
    AUGUR_CHECK(!"allowed while recording");
    return nullptr;
  }
  template <class Params>
  void Keep(void (Backend::*op)(const Params&), const Params& params) {
    to_->calls.push_back([=](Backend* backend) { (backend->*op)(params); });
  }

  RecordedCalls* const to_;
};

}  // namespace augur::kernels
