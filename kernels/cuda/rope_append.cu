#include "kernels/check.h"
#include "kernels/cuda/compress_window.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/fp8_page.h"
#include "kernels/kv_page.h"
#include "kernels/ops/rope_append.h"

namespace augur::kernels {
namespace {

// 32 query heads of 128 are 512 vectors of pairs: two a thread, and the segments of a full batch
// are looked through in one round.
constexpr int kThreads = 256;

// The segment that holds `row`, or -1. All threads look at once: a search would wait for memory at
// every step.
__device__ int SegmentOf(const RopeAppendParams& params, int row) {
  __shared__ int found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int s = threadIdx.x; s < params.num_segments; s += kThreads) {
    const int offset = row - params.segments[s].rows.first_row;
    if (offset >= 0 && offset < params.segments[s].rows.num_rows) found = s;
  }
  __syncthreads();
  return found;
}

// Products rounded before the sum, as the CPU does: no fused multiply-add.
template <int kVector>
__device__ void Rotate(const float* cos, const float* sin, float (&a)[kVector],
                       float (&b)[kVector]) {
  float c[kVector], s[kVector];
  LoadFloats(cos, c);
  LoadFloats(sin, s);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float x = a[i], y = b[i];
    a[i] = __fsub_rn(__fmul_rn(x, c[i]), __fmul_rn(y, s[i]));
    b[i] = __fadd_rn(__fmul_rn(y, c[i]), __fmul_rn(x, s[i]));
  }
}

// Of each q and k head of a row, a warp a head: 1 / sqrt(mean of squares + epsilon). The order of
// the sum follows from head_dim alone.
__device__ void FactorsOfHeads(const RopeAppendParams& params, const float* heads, float* factors) {
  const int head_dim = params.head_dim;
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < params.num_q_heads + params.num_kv_heads; h += kThreads / 32) {
    const float* head = heads + h * head_dim;
    float sum = 0.0f;
    for (int i = lane; i < head_dim; i += 32) sum = fmaf(head[i], head[i], sum);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (lane == 0) factors[h] = 1.0f / sqrtf(sum / head_dim + params.norm_epsilon);
  }
  __syncthreads();
}

template <int kVector>
__device__ void Norm(const float* weight, float factor, float (&x)[kVector]) {
  float w[kVector];
  LoadFloats(weight, w);
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = x[i] * factor * w[i];
}

// A warp's: as RoundRowToFp8 does.
template <class T>
__device__ void RoundRow(DType dtype, int head_dim, T* row) {
  const int lane = threadIdx.x % 32;
  uint32_t largest = 0;
  for (int c = lane; c < head_dim; c += 32) {
    largest = max(largest, fp8::FiniteMagnitude(__float_as_uint(ToFloat(row[c]))));
  }
  largest = __reduce_max_sync(~0u, largest);
  const int exponent = fp8::ExponentOf(largest, dtype);
  const float packing = fp8::PackingScale(exponent), unpacking = fp8::UnpackingScale(exponent);
  for (int c = lane; c < head_dim; c += 32) {
    const uint8_t code = fp8::E4M3FromFloat(ToFloat(row[c]) * packing);
    row[c] = FromFloat<T>(fp8::FloatFromE4M3(code) * unpacking);
  }
}

// One CTA a row; a thread turns kVector pairs of a head at a time. Gives the row's segment, or -1.
template <class T, int kVector>
__device__ int AppendRow(const RopeAppendParams& params) {
  const int row = blockIdx.x;
  const int s = SegmentOf(params, row);
  if (s < 0) return s;
  const AppendSegment segment = params.segments[s];
  const int head_dim = params.head_dim, half = head_dim / 2;
  const int kv_heads = params.num_kv_heads;
  const int position = segment.rows.first_position + row - segment.rows.first_row;
  const size_t angle = size_t(segment.first_angle + position) * half;
  const float* cos = params.cos + angle;
  const float* sin = params.sin + angle;
  float* heads = params.qkv + size_t(row) * params.row_stride;

  const int touched = position / kBlockTokens - segment.rows.first_position / kBlockTokens;
  const int block_stride = segment.block_stride == 0 ? kv_heads : segment.block_stride;
  std::byte* const* pages = segment.pages + params.pages_offset + int64_t{touched} * block_stride;
  const size_t entry = size_t(position % kBlockTokens) * head_dim;

  extern __shared__ float factors[];  // [q heads + kv heads], where they are normed
  const bool is_normed = params.q_norm != nullptr;
  if (is_normed) FactorsOfHeads(params, heads, factors);

  // Heads in the order q, k, forecast; v lies between the last two.
  const int first_v = params.num_q_heads + kv_heads;
  const int turned = first_v + params.num_forecast_heads;
  const int head_vectors = half / kVector;
  const int moved = params.forecasts == nullptr ? 0 : params.num_forecasts;
  float* forecasts = params.forecasts + size_t(row) * moved * head_dim;
  for (int item = threadIdx.x; item < turned * head_vectors; item += kThreads) {
    const int h = item / head_vectors;
    const int i = (item - h * head_vectors) * kVector;
    float* head = heads + (h < first_v ? h : h + kv_heads) * head_dim;
    float a[kVector], b[kVector];
    LoadFloats(head + i, a);
    LoadFloats(head + half + i, b);
    if (is_normed && h < first_v) {
      const float* weight = h < params.num_q_heads ? params.q_norm : params.k_norm;
      Norm(weight + i, factors[h], a);
      Norm(weight + half + i, factors[h], b);
    }
    Rotate(cos + i, sin + i, a, b);
    const int forecast = h - first_v;
    float* to = forecast >= 0 && forecast < moved ? forecasts + forecast * head_dim : head;
    StoreFloats(a, to + i);
    StoreFloats(b, to + half + i);
    const int kv_head = h - params.num_q_heads;
    if (kv_head < 0 || kv_head >= kv_heads) continue;
    T* k = reinterpret_cast<T*>(pages[int64_t{kv_head} * segment.head_stride]) + entry;
    StoreFloats(a, k + i);
    StoreFloats(b, k + half + i);
  }
  for (int i = threadIdx.x * kVector; i < kv_heads * head_dim; i += kThreads * kVector) {
    const int kv_head = i / head_dim;
    float values[kVector];
    LoadFloats(heads + first_v * head_dim + i, values);
    T* v = reinterpret_cast<T*>(pages[int64_t{kv_head} * segment.head_stride]) + entry +
           kBlockTokens * head_dim;
    StoreFloats(values, v + (i - kv_head * head_dim));
  }
  if (!params.fp8_rows) return s;
  __syncthreads();  // the rows are in their pages
  for (int i = threadIdx.x / 32; i < 2 * kv_heads; i += kThreads / 32) {
    T* page = reinterpret_cast<T*>(pages[int64_t{i / 2} * segment.head_stride]);
    RoundRow(params.dtype, head_dim, page + entry + i % 2 * kBlockTokens * head_dim);
  }
  return s;
}

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) RopeAppendKernel(RopeAppendParams params) {
  WaitForPrevious();
  AppendRow<T, kVector>(params);
}

// Of rows that are alone in their segments, whose key is the last that their windows lack: the CTA
// that has written it goes on with them. Fifteen tokens of sixteen end no window.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads)
    AppendAndCompressKernel(RopeAppendParams params, CompressKeysParams compress) {
  WaitForPrevious();
  const int s = AppendRow<T, kVector>(params);
  if (s < 0) return;
  const Segment rows = compress.segments[s].rows;
  if (rows.num_rows <= 0) return;
  const WindowRange windows = WindowsEndingIn(rows);
  if (windows.count() == 0) return;
  const CompressSegment segment = compress.segments[s];
  const int head_vectors = compress.head_dim / kVector;
  __syncthreads();  // the keys are in their pages
  for (int item = threadIdx.x; item < windows.count() * compress.num_kv_heads * head_vectors;
       item += kThreads) {
    const int head = item / head_vectors;
    WriteWindow<T, kVector>(compress, segment, windows.begin + head / compress.num_kv_heads,
                            head % compress.num_kv_heads, item % head_vectors * kVector);
  }
}

struct AppendLaunch {
  LaunchShape shape;
  bool is_wide = false;
};

// Pages are aligned to 16 bytes where head_dim is a multiple of 8, as parts of a pool are.
AppendLaunch PlanAppend(const RopeAppendParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.num_segments >= 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.num_q_heads >= 0 && params.num_forecast_heads >= 0);
  const int heads = params.num_q_heads + 2 * params.num_kv_heads + params.num_forecast_heads;
  AUGUR_CHECK(params.row_stride >= int64_t{heads} * params.head_dim);
  AUGUR_CHECK(params.num_forecasts >= 0 && params.num_forecasts <= params.num_forecast_heads);
  AUGUR_CHECK((params.q_norm == nullptr) == (params.k_norm == nullptr));
  AUGUR_CHECK(params.num_q_heads + params.num_kv_heads <= 4096);  // of shared memory's 48 KiB
  const bool is_wide = params.head_dim % 8 == 0 && params.row_stride % 4 == 0 &&
                       IsAligned(params.qkv, 16) && IsAligned(params.cos, 16) &&
                       IsAligned(params.sin, 16) && IsAligned(params.forecasts, 16) &&
                       IsAligned(params.q_norm, 16) && IsAligned(params.k_norm, 16);
  LaunchShape shape{dim3(params.rows), dim3(kThreads)};
  if (params.q_norm != nullptr) {
    shape.shared_bytes = (params.num_q_heads + params.num_kv_heads) * sizeof(float);
  }
  return {.shape = shape, .is_wide = is_wide};
}

}  // namespace

void CudaBackend::RopeAppend(const RopeAppendParams& params) {
  const AppendLaunch launch = PlanAppend(params);
  if (params.num_segments == 0) return;
  ForElementType(params.dtype, [&]<class T>() {
    LaunchKernel(stream_, launch.shape,
                 launch.is_wide ? RopeAppendKernel<T, 4> : RopeAppendKernel<T, 1>, params);
  });
}

void CudaBackend::AppendAndCompress(const RopeAppendParams& append,
                                    const CompressKeysParams& compress) {
  const AppendLaunch launch = PlanAppend(append);
  AUGUR_CHECK(compress.num_segments == append.num_segments);
  AUGUR_CHECK(compress.num_kv_heads == append.num_kv_heads);
  AUGUR_CHECK(compress.head_dim == append.head_dim && compress.dtype == append.dtype);
  if (append.num_segments == 0) return;
  ForElementType(append.dtype, [&]<class T>() {
    LaunchKernel(stream_, launch.shape,
                 launch.is_wide ? AppendAndCompressKernel<T, 4> : AppendAndCompressKernel<T, 1>,
                 append, compress);
  });
}

}  // namespace augur::kernels
