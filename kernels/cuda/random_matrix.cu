#include <algorithm>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/random_matrix.h"
#include "kernels/random_weight.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
// CTAs take rows in turn; several waves of a card's CTAs, so that the last one does not show.
constexpr int64_t kMaxCtas = 8192;

template <class T>
__global__ void __launch_bounds__(kThreads) FillRandomKernel(RandomMatrix matrix) {
  WaitForPrevious();
  for (int64_t row = blockIdx.x; row < matrix.padded_rows; row += gridDim.x) {
    T* to = static_cast<T*>(matrix.to) + row * matrix.padded_columns;
    for (int64_t column = threadIdx.x; column < matrix.padded_columns; column += kThreads) {
      float value = 0.0f;
      if (row < matrix.rows && column < matrix.columns) {
        const uint64_t index = static_cast<uint64_t>(row * matrix.columns + column);
        value = RandomWeight(matrix.seed, index) * matrix.scale;
      }
      to[column] = FromFloat<T>(value);
    }
  }
}

}  // namespace

void FillRandom(const RandomMatrix& matrix, cudaStream_t stream) {
  const auto ctas = static_cast<unsigned>(std::min(matrix.padded_rows, kMaxCtas));
  ForElementType(matrix.dtype, [&]<class T>() {
    LaunchKernel(stream, {.grid = ctas, .block = kThreads}, FillRandomKernel<T>, matrix);
  });
}

}  // namespace augur::kernels
