#include "kernels/check.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile_product.h"
#include "kernels/ops/project_forecast.h"

namespace augur::kernels {
namespace {

using Element = __nv_bfloat16;

struct TurnRowsParams {
  const float* from = nullptr;  // [rows][heads][head_dim]
  Element* to = nullptr;
  const int32_t* positions = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int head_dim = 0;
  float direction = 1.0f;  // -1: back
};

// A CTA a (row, head), a thread a pair.
__global__ void TurnRowsKernel(TurnRowsParams params) {
  WaitForPrevious();
  const int half = params.head_dim / 2, i = threadIdx.x;
  const int64_t head = (int64_t{blockIdx.x} * gridDim.y + blockIdx.y) * params.head_dim;
  const int64_t angle = int64_t{params.positions[blockIdx.x]} * half + i;
  const float a = params.from[head + i], b = params.from[head + half + i];
  const float c = params.cos[angle], s = params.direction * params.sin[angle];
  params.to[head + i] = FromFloat<Element>(a * c - b * s);
  params.to[head + half + i] = FromFloat<Element>(b * c + a * s);
}

void TurnRows(const TurnRowsParams& params, int rows, int heads, cudaStream_t stream) {
  LaunchKernel(stream, {dim3(rows, heads), dim3(params.head_dim / 2)}, TurnRowsKernel, params);
}

template <class Params>
void CheckShapes(const Params& params) {
  AUGUR_CHECK(params.dtype == DType::kBF16);
  AUGUR_CHECK(params.rows >= 0 && params.hidden > 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 8 == 0 && params.head_dim <= 256);
}

}  // namespace

void CudaTrainingOps::ProjectForecast(const ProjectForecastParams& params) {
  CheckShapes(params);
  const int width = params.num_kv_heads * params.head_dim;
  MultiplyTiles({.a = {.data = static_cast<const Element*>(params.x), .stride = params.hidden},
                 .b = {.data = static_cast<const Element*>(params.head), .stride = params.hidden},
                 .c = params.products,
                 .c_stride = width,
                 .rows = params.rows,
                 .columns = width,
                 .summed = params.hidden},
                stream_);
  TurnRows({.from = params.products,
            .to = static_cast<Element*>(params.forecasts),
            .positions = params.positions,
            .cos = params.cos,
            .sin = params.sin,
            .head_dim = params.head_dim},
           params.rows, params.num_kv_heads, stream_);
}

void CudaTrainingOps::AddForecastGradient(const AddForecastGradientParams& params) {
  CheckShapes(params);
  const int width = params.num_kv_heads * params.head_dim;
  auto* const turned = static_cast<Element*>(params.turned);
  TurnRows({.from = params.derivatives,
            .to = turned,
            .positions = params.positions,
            .cos = params.cos,
            .sin = params.sin,
            .head_dim = params.head_dim,
            .direction = -1.0f},
           params.rows, params.num_kv_heads, stream_);
  MultiplyTiles({.a = {.data = turned, .stride = width, .summed_outside = true},
                 .b = {.data = static_cast<const Element*>(params.x),
                       .stride = params.hidden,
                       .summed_outside = true},
                 .c = params.gradient,
                 .c_stride = params.hidden,
                 .rows = width,
                 .columns = params.hidden,
                 .summed = params.rows,
                 .accumulate = true},
                stream_);
}

}  // namespace augur::kernels
