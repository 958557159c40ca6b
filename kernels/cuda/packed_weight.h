// A weight in device memory as the checkpoint has it: row-major, of its own type. Rows and columns
// are padded with zeros to multiples of kLinearMultiple (linear_plans.h), which for real models
// adds nothing.
//
// Thread: immutable once packed. Ownership: its device memory; the plans are the backend's, which
// has to live as long. Failure: out of memory is a broken device (device_failure.h), as weights are
// loaded at start.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/linear_plans.h"
#include "kernels/ops/linear.h"

namespace augur::kernels {

// Pinned memory through which pageable host memory reaches the device: the host fills one half
// while the copy engine empties the other.
//
// Thread: the backend's. Ownership: its memory.
class WeightStaging {
 public:
  explicit WeightStaging(cudaStream_t stream);
  ~WeightStaging();
  WeightStaging(const WeightStaging&) = delete;
  WeightStaging& operator=(const WeightStaging&) = delete;

  // `rows` of row_bytes lie together at `from`, to_stride bytes apart at `to`, in the stream's
  // order. `from` has been read on return.
  void Upload(void* to, size_t to_stride, const void* from, size_t row_bytes, int rows);

 private:
  // Far beyond what a copy needs for the link's full rate (64 KiB in flight), so that the host's
  // calls do not show.
  static constexpr size_t kHalfBytes = size_t{8} << 20;

  const cudaStream_t stream_;
  char* halves_[2] = {};
  cudaEvent_t emptied_[2] = {};
  int next_ = 0;
};

class CudaPackedWeight final : public PackedWeight {
 public:
  // `source.data` is host memory or null (random weights, made on the device). The shape of `plans`
  // is PaddedShape(source).
  CudaPackedWeight(const WeightSource& source, const LinearPlanSet& plans, WeightStaging* staging,
                   cudaStream_t stream);
  ~CudaPackedWeight() override;

  static LinearShape PaddedShape(const WeightSource& source);

  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  size_t bytes() const override;

  const LinearPlanSet& plans() const { return plans_; }
  const void* data() const { return data_; }

 private:
  const int out_features_;
  const int in_features_;
  const LinearPlanSet& plans_;
  void* data_ = nullptr;  // [plans_.shape.out_features, plans_.shape.in_features]
};

}  // namespace augur::kernels
