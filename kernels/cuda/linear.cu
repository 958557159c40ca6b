#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plans.h"
#include "kernels/cuda/packed_weight.h"
#include "kernels/ops/linear.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;

// to[r, c] = (from[r, c], or 0 without from) + (bias[c], or 0 without bias) for c < columns, and 0
// up to to_columns. `to` may be `from`.
struct MoveRowsParams {
  const void* from = nullptr;
  void* to = nullptr;
  const float* bias = nullptr;
  int64_t from_stride = 0;  // elements
  int64_t to_stride = 0;
  int columns = 0;
  int to_columns = 0;
};

// A CTA a row: for shapes of tests, and for a bias where cuBLASLt does not add it.
template <class From, class To>
__global__ void __launch_bounds__(kThreads) MoveRowsKernel(MoveRowsParams params) {
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const From* from = static_cast<const From*>(params.from) + row * params.from_stride;
  To* to = static_cast<To*>(params.to) + row * params.to_stride;
  for (int column = threadIdx.x; column < params.to_columns; column += kThreads) {
    float value = 0.0f;
    if (column < params.columns) {
      if (params.from != nullptr) value = ToFloat(from[column]);
      if (params.bias != nullptr) value += params.bias[column];
    }
    to[column] = FromFloat<To>(value);
  }
}

template <class From, class To>
void MoveRows(int rows, const MoveRowsParams& params, cudaStream_t stream) {
  LaunchKernel(stream, {.grid = static_cast<unsigned>(rows), .block = kThreads},
               MoveRowsKernel<From, To>, params);
}

bool IsAligned(const void* data, int64_t stride, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % kLinearAlignment == 0 &&
         stride * BytesOf(dtype) % kLinearAlignment == 0;
}

// One call, in pieces of rows: what cuBLASLt takes as it is goes straight to it, the rest through
// scratch. Both run the same algorithm on the same numbers.
class LinearCall {
 public:
  LinearCall(const LinearParams& params, LinearPlans* plans, cudaStream_t stream)
      : params_(params),
        weight_(static_cast<const CudaPackedWeight&>(*params.weight)),
        shape_(weight_.plans().shape),
        plans_(plans),
        stream_(stream),
        columns_(params.columns == 0 ? weight_.out_features() : params.columns) {
    CheckShapes();
    x_in_scratch_ = shape_.in_features != weight_.in_features() ||
                    !IsAligned(params.x, params.x_stride, params.x_dtype);
    // A bias is added before rounding, so y of 16 bits is a float32 y first.
    product_y_dtype_ = params.bias == nullptr ? params.y_dtype : DType::kF32;
    y_in_scratch_ = shape_.out_features != columns_ || product_y_dtype_ != params.y_dtype ||
                    !IsAligned(params.y, params.y_stride, params.y_dtype);
  }

  void Run() const {
    const int rows_of_piece = RowsOfPiece();
    for (int row = 0; row < params_.rows; row += rows_of_piece) {
      RunPiece(row, std::min(rows_of_piece, params_.rows - row));
    }
  }

 private:
  void CheckShapes() const {
    AUGUR_CHECK(columns_ > 0 && columns_ <= weight_.out_features());
    AUGUR_CHECK(params_.room_rows == 0 || params_.room_rows >= params_.rows);
    AUGUR_CHECK(params_.rows >= 0 && params_.x_stride >= weight_.in_features() &&
                params_.y_stride >= columns_);
    AUGUR_CHECK(params_.x_dtype == shape_.dtype);
    AUGUR_CHECK(params_.y_dtype == DType::kF32 || params_.y_dtype == params_.x_dtype);
    AUGUR_CHECK(!params_.accumulate || params_.y_dtype == DType::kF32);
  }

  int RowsOfPiece() const {
    size_t rows = MaxLinearRows(params_.phase);
    if (x_in_scratch_) {
      const size_t row_bytes = shape_.in_features * BytesOf(shape_.dtype);
      rows = std::min(rows, LinearPlans::x_scratch_bytes / row_bytes);
    }
    if (y_in_scratch_) {
      const size_t row_bytes = shape_.out_features * BytesOf(product_y_dtype_);
      rows = std::min(rows, LinearPlans::y_scratch_bytes / row_bytes);
    }
    AUGUR_CHECK(rows > 0);
    return static_cast<int>(rows);
  }

  void RunPiece(int first_row, int rows) const {
    const LinearPlan& plan = weight_.plans().Of(params_.phase, product_y_dtype_);
    LinearProduct product{.shape = shape_,
                          .weight = weight_.data(),
                          .x = static_cast<const char*>(params_.x) +
                               size_t(first_row) * params_.x_stride * BytesOf(params_.x_dtype),
                          .y_dtype = product_y_dtype_,
                          .rows = rows,
                          .x_stride = params_.x_stride,
                          .accumulate = params_.accumulate,
                          .beside_copies = params_.beside_copies};
    if (x_in_scratch_) PadX(&product);
    void* y = static_cast<char*>(params_.y) +
              size_t(first_row) * params_.y_stride * BytesOf(params_.y_dtype);
    product.y = y_in_scratch_ ? plans_->y_scratch() : y;
    product.y_stride = y_in_scratch_ ? shape_.out_features : params_.y_stride;
    // cuBLASLt reads as many biases as there are columns, padding included.
    const bool plan_adds_bias = plan.adds_bias && shape_.out_features == weight_.out_features() &&
                                IsAligned(params_.bias, 0, DType::kF32);
    if (params_.bias != nullptr && plan_adds_bias) product.bias = params_.bias;
    // Where all goes straight to cuBLASLt.
    if (!x_in_scratch_ && !y_in_scratch_ && (params_.bias == nullptr || plan_adds_bias)) {
      const int padded = plan.PaddedRows(rows);
      if (first_row + padded <= params_.room_rows) product.rows = padded;
    }
    PrepareY(y, params_.bias != nullptr && !plan_adds_bias, &product);
    plans_->Multiply(plan, product);
    if (y_in_scratch_) StoreY(y, product);
  }

  void PadX(LinearProduct* product) const {
    const MoveRowsParams move{.from = product->x,
                              .to = plans_->x_scratch(),
                              .from_stride = params_.x_stride,
                              .to_stride = shape_.in_features,
                              .columns = weight_.in_features(),
                              .to_columns = shape_.in_features};
    ForElementType(shape_.dtype, [&]<class T>() { MoveRows<T, T>(product->rows, move, stream_); });
    product->x = move.to;
    product->x_stride = move.to_stride;
  }

  // What the product is added to: the old y, a bias that the plan does not add, or both.
  void PrepareY(const void* y, bool with_bias, LinearProduct* product) const {
    const bool moves_y = params_.accumulate && y_in_scratch_;
    if (!moves_y && !with_bias) return;
    const MoveRowsParams move{.from = params_.accumulate ? y : nullptr,
                              .to = product->y,
                              .bias = with_bias ? params_.bias : nullptr,
                              .from_stride = params_.y_stride,
                              .to_stride = product->y_stride,
                              .columns = columns_,
                              .to_columns = y_in_scratch_ ? shape_.out_features : columns_};
    MoveRows<float, float>(product->rows, move, stream_);
    product->accumulate = true;
  }

  void StoreY(void* y, const LinearProduct& product) const {
    const MoveRowsParams move{.from = product.y,
                              .to = y,
                              .from_stride = product.y_stride,
                              .to_stride = params_.y_stride,
                              .columns = columns_,
                              .to_columns = columns_};
    ForElementType(params_.y_dtype, [&]<class T>() {
      if (product_y_dtype_ == DType::kF32) {
        MoveRows<float, T>(product.rows, move, stream_);
      } else {
        MoveRows<T, T>(product.rows, move, stream_);
      }
    });
  }

  const LinearParams& params_;
  const CudaPackedWeight& weight_;
  const LinearShape& shape_;
  LinearPlans* const plans_;
  const cudaStream_t stream_;
  const int columns_;
  bool x_in_scratch_ = false;
  bool y_in_scratch_ = false;
  DType product_y_dtype_ = DType::kF32;  // what cuBLASLt writes
};

}  // namespace

std::unique_ptr<PackedWeight> CudaBackend::PackWeight(const WeightSource& source) {
  AUGUR_CHECK(source.out_features > 0 && source.in_features > 0);
  const LinearPlanSet& plans = linear_plans_->PlansFor(CudaPackedWeight::PaddedShape(source));
  if (weight_staging_ == nullptr) weight_staging_ = std::make_unique<WeightStaging>(stream_);
  return std::make_unique<CudaPackedWeight>(source, plans, weight_staging_.get(), stream_);
}

// In one pass where our own product serves the weight as it is.
void CudaBackend::GatedLinear(const LinearParams& linear, const GatedSiluParams& silu) {
  const auto& weight = static_cast<const CudaPackedWeight&>(*linear.weight);
  const LinearShape& shape = weight.plans().shape;
  const LinearPlan& plan = weight.plans().Of(linear.phase, linear.y_dtype);
  AUGUR_CHECK(silu.gate_up == linear.y && silu.rows == linear.rows &&
              2 * silu.width == weight.out_features() && silu.dtype == linear.y_dtype);
  const bool is_whole = shape.out_features == weight.out_features() &&
                        shape.in_features == weight.in_features() && linear.columns == 0 &&
                        IsAligned(linear.x, linear.x_stride, linear.x_dtype) &&
                        IsAligned(silu.out, silu.width, silu.dtype);
  const bool is_plain = linear.bias == nullptr && !linear.accumulate &&
                        linear.y_dtype == shape.dtype && linear.x_dtype == shape.dtype;
  if (linear.rows == 0 || linear.rows > MaxLinearRows(linear.phase) || !is_whole || !is_plain ||
      !linear_plans_->MultipliesGated(plan, shape)) {
    return Backend::GatedLinear(linear, silu);
  }
  linear_plans_->Multiply(plan, {.shape = shape,
                                 .weight = weight.data(),
                                 .x = linear.x,
                                 .y = silu.out,
                                 .y_dtype = linear.y_dtype,
                                 .rows = linear.rows,
                                 .x_stride = linear.x_stride,
                                 .y_stride = silu.width,
                                 .beside_copies = linear.beside_copies,
                                 .is_gated = true});
}

void CudaBackend::Linear(const LinearParams& params) {
  AUGUR_CHECK(params.columns >= 0);
  LinearCall(params, linear_plans_.get(), stream_).Run();
}

}  // namespace augur::kernels
