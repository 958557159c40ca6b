// What a step's ops read beside weights and activations, in one piece of device memory that is
// filled by one copy from the host. The host's side is a ring, so that the next step's tables can
// be written while an upload is still under way.
//
// Thread: the engine's. Ownership: the memory, on both sides; the backend outlives it. Failure:
// Create names the bytes and the knobs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"

namespace augur::engine {

// Arrays of one side.
struct StepArrays {
  int32_t* token_ids = nullptr;                 // [rows]
  kernels::AppendSegment* append = nullptr;     // [rows]
  kernels::AttentionSegment* attend = nullptr;  // [rows]
  int32_t* sampled_rows = nullptr;              // [sampled]
  kernels::SamplingRow* sampling = nullptr;     // [sampled]
};

class StepTables {
 public:
  static absl::StatusOr<std::unique_ptr<StepTables>> Create(kernels::Backend* backend, int rows,
                                                            int sampled);
  ~StepTables();
  StepTables(const StepTables&) = delete;
  StepTables& operator=(const StepTables&) = delete;

  // Where the next step's tables are written, left as an earlier step had them; waits for the
  // upload that read the same memory, kRing uploads ago.
  const StepArrays& BeginHost();
  // Sends what was written since BeginHost to device(), in order with ops.
  void Upload();
  const StepArrays& device() const { return device_; }

 private:
  static constexpr int kRing = 3;  // a step, the one run ahead of it, and the one being written

  StepTables(kernels::Backend* backend, int rows, int sampled);
  StepArrays ArraysAt(std::byte* base) const;

  kernels::Backend* const backend_;
  const int rows_;
  const int sampled_;
  size_t bytes_ = 0;
  kernels::BackendArray<std::byte> device_bytes_;
  StepArrays device_;
  std::array<std::byte*, kRing> host_bytes_{};
  std::array<StepArrays, kRing> host_;
  std::array<uint64_t, kRing> marks_{};  // of the last upload
  int next_ = 0;
};

}  // namespace augur::engine
