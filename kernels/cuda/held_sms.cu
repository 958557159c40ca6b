#include <atomic>

#include "kernels/check.h"
#include "kernels/cuda/held_sms.h"
#include "kernels/cuda/launch.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 32;
constexpr int kSharedBytes = 192 * 1024;  // two of them find no place on one SM
constexpr uint64_t kLongestNs = 2'000'000'000;

__device__ inline uint64_t NowNs() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void __launch_bounds__(kThreads) HoldKernel(int32_t* started, const int32_t* released) {
  WaitForPrevious();
  if (threadIdx.x != 0) return;
  atomicAdd_system(started, 1);
  const uint64_t begin = NowNs();
  int32_t is_released = 0;
  while (is_released == 0 && NowNs() - begin < kLongestNs) {
    asm volatile("ld.relaxed.sys.global.s32 %0, [%1];"
                 : "=r"(is_released)
                 : "l"(__cvta_generic_to_global(released))
                 : "memory");
    __nanosleep(500);
  }
}

}  // namespace

HeldSms::HeldSms(int count) : count_(count) {
  AUGUR_CHECK(count > 0);
  int least = 0, greatest = 0;
  AUGUR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  AUGUR_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  AUGUR_CUDA(cudaMallocHost(reinterpret_cast<void**>(&flags_), sizeof(Flags)));
  AUGUR_CUDA(
      cudaFuncSetAttribute(HoldKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
}

HeldSms::~HeldSms() {
  if (holding_) Release();
  cudaFreeHost(flags_);
  cudaStreamDestroy(stream_);
}

void HeldSms::Hold() {
  AUGUR_CHECK(!holding_);
  holding_ = true;
  *flags_ = {};
  LaunchKernel(
      stream_,
      {.grid = static_cast<unsigned>(count_), .block = kThreads, .shared_bytes = kSharedBytes},
      HoldKernel, &flags_->started, static_cast<const int32_t*>(&flags_->released));
  while (std::atomic_ref(flags_->started).load(std::memory_order_acquire) < count_) {
    const cudaError_t state = cudaStreamQuery(stream_);
    // Over after its two seconds, where more were to be held than the device has.
    if (state == cudaSuccess) break;
    if (state != cudaErrorNotReady) AUGUR_CUDA(state);
  }
}

void HeldSms::Release() {
  AUGUR_CHECK(holding_);
  std::atomic_ref(flags_->released).store(1, std::memory_order_release);
  AUGUR_CUDA(cudaStreamSynchronize(stream_));
  holding_ = false;
}

}  // namespace augur::kernels
