// What every .cu file here needs: error checks and the one way in which kernels are launched.
//
// Failure: a CUDA call that fails is a broken device (device_failure.h) and does not return; a
// launch with a bad shape is our bug, but looks the same.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace augur::kernels {

[[noreturn]] void ReportCudaFailure(cudaError_t error, const char* call, const char* file,
                                    int line);

#define AUGUR_CUDA(call)                                                                \
  do {                                                                                  \
    const cudaError_t augur_cuda_error = (call);                                        \
    if (augur_cuda_error != cudaSuccess) {                                              \
      ::augur::kernels::ReportCudaFailure(augur_cuda_error, #call, __FILE__, __LINE__); \
    }                                                                                   \
  } while (false)

// Kernels start while their predecessor on the stream drains (programmatic dependent launch), which
// hides most of a launch's latency. So the first statement of every kernel is WaitForPrevious():
// nothing that a predecessor wrote may be read, and nothing it reads be written, before it. Only
// what is fixed from start to end (weights, kernel parameters) may be touched earlier. In a
// captured graph that holds for all that a kernel follows, on other streams, too (README.md).
__device__ inline void WaitForPrevious() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Its halves, for the kernels of one op. Where the op's first kernel calls WaitForPreviousFirst(),
// what was written before the op may be read, and scratch of the op before be written, already
// before AwaitPrevious() in the second one; only what the first one wrote may not.
__device__ inline void LetNextStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void AwaitPrevious() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void WaitForPreviousFirst() {
  AwaitPrevious();
  LetNextStart();
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic; above 48 KiB the kernel's attribute must have been raised
};

template <class... KernelArgs, class... Args>
void LaunchKernel(cudaStream_t stream, const LaunchShape& shape, void (*kernel)(KernelArgs...),
                  Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  AUGUR_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

}  // namespace augur::kernels
