// Copies of a few KiB by a kernel. Between two steps' graphs lie three of them (tables to the
// device, tokens on the device and back to the host): as cudaMemcpyAsync each leaves the device
// idle for about 6 us, since the copy engine and the SMs wait for each other.
//
// Thread: the backend's. Failure: a CUDA error is a broken device (device_failure.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace augur::kernels {

// Beyond it the copy engine's rate counts for more than its latency.
inline constexpr size_t kMostSmallCopyBytes = size_t{64} << 10;

// Device memory or pinned host memory, at most kMostSmallCopyBytes, which do not overlap. In the
// stream's order.
void CopySmall(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace augur::kernels
