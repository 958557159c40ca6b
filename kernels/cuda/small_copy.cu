#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/small_copy.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;

// A word a thread, so that all of it crosses the link at once.
template <class Word>
__global__ void __launch_bounds__(kThreads) CopyWordsKernel(Word* to, const Word* from, int count) {
  WaitForPrevious();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) to[i] = __ldcv(from + i);  // host memory: what lies in a cache may be old
}

template <class Word>
void CopyWords(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const int count = static_cast<int>(bytes / sizeof(Word));
  const LaunchShape shape{dim3((count + kThreads - 1) / kThreads), dim3(kThreads)};
  LaunchKernel(stream, shape, CopyWordsKernel<Word>, static_cast<Word*>(to),
               static_cast<const Word*>(from), count);
}

}  // namespace

void CopySmall(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  AUGUR_CHECK(bytes <= kMostSmallCopyBytes);
  const uintptr_t places =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (places % sizeof(uint4) == 0) {
    CopyWords<uint4>(to, from, bytes, stream);
  } else if (places % sizeof(unsigned) == 0) {
    CopyWords<unsigned>(to, from, bytes, stream);
  } else {
    CopyWords<unsigned char>(to, from, bytes, stream);
  }
}

}  // namespace augur::kernels
