// Keeps some SMs as full as a copy of pages does (page_copy.cu: one warp with 192 KiB of shared
// memory), so that something can be timed beside it without the copy's traffic.
//
// Thread: the backend's; never while ops are recorded. Between Hold and Release nothing may be
// called that waits for the whole device (cudaMalloc, cudaFree, the first launch of a kernel): it
// would wait for the SMs to be let go, which they are after two seconds at the latest. Ownership: a
// stream and a few bytes. Failure: a broken device (device_failure.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace augur::kernels {

class HeldSms {
 public:
  explicit HeldSms(int count);  // at least 1
  ~HeldSms();
  HeldSms(const HeldSms&) = delete;
  HeldSms& operator=(const HeldSms&) = delete;

  // Returns when all of them are held.
  void Hold();
  // Returns when all of them are free.
  void Release();

 private:
  struct Flags {
    int32_t started = 0;
    int32_t released = 0;
  };

  const int count_;
  cudaStream_t stream_ = nullptr;
  Flags* flags_ = nullptr;  // in pinned memory
  bool holding_ = false;
};

}  // namespace augur::kernels
