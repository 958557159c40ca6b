// What a step's ops read beside weights and activations: arrays that the host has written, in one
// piece of device memory that is filled by one copy. The host's side is a ring, so that the next
// step's arrays can be written while an upload is still under way.
//
// Arrays of the same types and lengths, put in the same order, lie at the same places: a recorded
// graph finds those of every step.
//
// Thread: the engine's. Ownership: the memory, on both sides; the backend outlives it. Failure:
// Create names the bytes and the knobs; more than `bytes` is a CHECK.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"
#include "kernels/check.h"

namespace augur::engine {

class StepTables {
 public:
  static absl::StatusOr<std::unique_ptr<StepTables>> Create(kernels::Backend* backend,
                                                            size_t bytes);
  ~StepTables();
  StepTables(const StepTables&) = delete;
  StepTables& operator=(const StepTables&) = delete;

  // The next step's arrays come now; waits for the upload that read the same memory, kRing uploads
  // ago.
  void Begin();
  // Where the array will lie on the device once Upload has been called.
  template <class T>
  T* Put(const std::vector<T>& values) {
    static_assert(alignof(T) <= kAlignment);
    const size_t begin = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    const size_t bytes = values.size() * sizeof(T);
    AUGUR_CHECK(begin + bytes <= bytes_);
    if (bytes > 0) std::memcpy(host_bytes_[next_] + begin, values.data(), bytes);
    used_ = begin + bytes;
    return reinterpret_cast<T*>(device_bytes_.data() + begin);
  }
  // Sends what was put since Begin, in order with ops.
  void Upload();

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr int kRing = 3;  // a step, the one run ahead of it, and the one being written

  StepTables(kernels::Backend* backend, size_t bytes);

  kernels::Backend* const backend_;
  const size_t bytes_;
  size_t used_ = 0;
  kernels::BackendArray<std::byte> device_bytes_;
  std::array<std::byte*, kRing> host_bytes_{};
  std::array<uint64_t, kRing> marks_{};  // of the last upload
  int next_ = 0;
};

}  // namespace augur::engine
