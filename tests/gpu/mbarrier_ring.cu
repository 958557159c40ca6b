// The smallest ring of bulk copies between one loading and two reading warps, to see what
// compute-sanitizer's racecheck makes of it (kernels/cuda/README.md, "Decode attention"). Built and
// run by hand on a machine with a GPU:
//   nvcc -std=c++20 -lineinfo -gencode=arch=compute_90a,code=sm_90a mbarrier_ring.cu -o
//   mbarrier_ring compute-sanitizer --tool racecheck ./mbarrier_ring VARIANT
// VARIANT  0  every reading thread arrives at the "empty" barrier
//          1  __syncwarp(), then one lane a warp arrives: the same order, by cumulativity
//          2  as 0, 3 as 1, but readers arrive before they have read: a race
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr int kStages = 2, kPages = 16, kReaders = 2, kBytes = 4096;

__device__ uint32_t Address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

__device__ void Wait(const uint64_t& barrier, uint32_t parity) {
  uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(Address(&barrier)), "r"(parity)
        : "memory");
  }
}

__device__ void Arrive(const uint64_t& barrier, bool every_lane) {
  __syncwarp();
  if (!every_lane && threadIdx.x % 32 != 0) return;
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address(&barrier)) : "memory");
}

__global__ void Ring(const char* from, uint32_t* sums, bool every_lane, bool is_early) {
  __shared__ alignas(128) char pages[kStages][kBytes];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address(&full[stage])), "r"(1));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address(&empty[stage])),
                   "r"(every_lane ? kReaders * 32 : kReaders));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  uint32_t sum = 0;
  for (int page = 0; page < kPages; ++page) {
    const int stage = page % kStages;
    const uint32_t parity = page / kStages % 2;
    if (warp == kReaders) {
      if (lane != 0) continue;
      Wait(empty[stage], parity ^ 1);
      asm volatile(
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address(&full[stage])),
          "r"(kBytes)
          : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(Address(pages[stage])),
          "l"(from + page * kBytes), "r"(kBytes), "r"(Address(&full[stage]))
          : "memory");
      continue;
    }
    Wait(full[stage], parity);
    if (is_early) Arrive(empty[stage], every_lane);
    for (int i = threadIdx.x; i < kBytes / 4; i += kReaders * 32) {
      sum += reinterpret_cast<const uint32_t*>(pages[stage])[i];
    }
    if (!is_early) Arrive(empty[stage], every_lane);
  }
  if (warp < kReaders) sums[threadIdx.x] = sum;
}

int main(int argc, char** argv) {
  const int variant = argc > 1 ? std::atoi(argv[1]) : 0;
  char* from = nullptr;
  uint32_t* sums = nullptr;
  if (cudaMalloc(&from, kPages * kBytes) != cudaSuccess) return 1;
  if (cudaMalloc(&sums, kReaders * 32 * sizeof(uint32_t)) != cudaSuccess) return 1;
  cudaMemset(from, 1, kPages * kBytes);
  Ring<<<1, (kReaders + 1) * 32>>>(from, sums, variant % 2 == 0, variant >= 2);
  const cudaError_t error = cudaDeviceSynchronize();
  std::printf("variant %d: %s\n", variant, cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : 1;
}
