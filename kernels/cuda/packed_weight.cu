#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/cuda/random_matrix.h"

namespace augur::kernels {
namespace {

constexpr int Padded(int features) {
  return (features + kLinearMultiple - 1) / kLinearMultiple * kLinearMultiple;
}

}  // namespace

WeightStaging::WeightStaging(cudaStream_t stream) : stream_(stream) {
  for (int half = 0; half < 2; ++half) {
    AUGUR_CUDA(cudaMallocHost(&halves_[half], kHalfBytes));
    AUGUR_CUDA(cudaEventCreateWithFlags(&emptied_[half], cudaEventDisableTiming));
  }
}

WeightStaging::~WeightStaging() {
  cudaStreamSynchronize(stream_);
  for (int half = 0; half < 2; ++half) {
    cudaEventDestroy(emptied_[half]);
    cudaFreeHost(halves_[half]);
  }
}

void WeightStaging::Upload(void* to, size_t to_stride, const void* from, size_t row_bytes,
                           int rows) {
  const int rows_of_half = static_cast<int>(std::min<size_t>(rows, kHalfBytes / row_bytes));
  AUGUR_CHECK(rows_of_half > 0);
  for (int row = 0; row < rows; row += rows_of_half) {
    const int count = std::min(rows_of_half, rows - row);
    AUGUR_CUDA(cudaEventSynchronize(emptied_[next_]));  // at once where it was never recorded
    std::memcpy(halves_[next_], static_cast<const char*>(from) + row * row_bytes,
                count * row_bytes);
    char* place = static_cast<char*>(to) + row * to_stride;
    if (row_bytes == to_stride) {
      AUGUR_CUDA(cudaMemcpyAsync(place, halves_[next_], count * row_bytes, cudaMemcpyHostToDevice,
                                 stream_));
    } else {
      AUGUR_CUDA(cudaMemcpy2DAsync(place, to_stride, halves_[next_], row_bytes, row_bytes, count,
                                   cudaMemcpyHostToDevice, stream_));
    }
    AUGUR_CUDA(cudaEventRecord(emptied_[next_], stream_));
    next_ ^= 1;
  }
}

LinearShape CudaPackedWeight::PaddedShape(const WeightSource& source) {
  return {Padded(source.out_features), Padded(source.in_features), source.dtype};
}

CudaPackedWeight::CudaPackedWeight(const WeightSource& source, const LinearPlanSet& plans,
                                   WeightStaging* staging, cudaStream_t stream)
    : out_features_(source.out_features), in_features_(source.in_features), plans_(plans) {
  const LinearShape& shape = plans.shape;
  AUGUR_CHECK(shape == PaddedShape(source));
  AUGUR_CUDA(cudaMalloc(&data_, bytes()));
  if (source.data == nullptr) {
    FillRandom({.to = data_,
                .dtype = source.dtype,
                .rows = out_features_,
                .columns = in_features_,
                .padded_rows = shape.out_features,
                .padded_columns = shape.in_features,
                .seed = source.random_seed,
                .scale = source.random_scale},
               stream);
    return;
  }
  if (shape.out_features != out_features_ || shape.in_features != in_features_) {
    AUGUR_CUDA(cudaMemsetAsync(data_, 0, bytes(), stream));
  }
  const size_t element = BytesOf(source.dtype);
  staging->Upload(data_, shape.in_features * element, source.data, in_features_ * element,
                  out_features_);
}

CudaPackedWeight::~CudaPackedWeight() { cudaFree(data_); }

size_t CudaPackedWeight::bytes() const {
  const LinearShape& shape = plans_.shape;
  return size_t(shape.out_features) * shape.in_features * BytesOf(shape.dtype);
}

}  // namespace augur::kernels
