#include <cmath>

#include "kernels/check.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile_product.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/forecast_loss.h"

namespace augur::kernels {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostCandidates = 7168;  // of a row: 450,000 tokens
constexpr float kFloor = static_cast<float>(kLossFloor);

// Values of all threads folded in one order; every thread gets the result.
template <class Fold>
__device__ float FoldCta(float value, Fold fold) {
  __shared__ float of_warps[kWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fold(value, __shfl_xor_sync(~0u, value, distance));
  }
  __syncthreads();  // the last call's values have been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float result = of_warps[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) result = fold(result, of_warps[w]);
  return result;
}
__device__ float SumCta(float value) {
  return FoldCta(value, [](float a, float b) { return a + b; });
}
__device__ float MaxCta(float value) {
  return FoldCta(value, [](float a, float b) { return fmaxf(a, b); });
}

// Rises with the score.
__device__ uint32_t ScoreKey(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// chosen[i] of every candidate i: whether its score is one of the `wanted` largest, ties to the
// lower one. keys: [candidates], scratch. Both in shared memory.
__device__ void ChooseBlocks(const float* scores, int num_windows, const FreeBlocks& free,
                             uint32_t* keys, uint8_t* chosen) {
  const int candidates = free.candidates();
  __syncthreads();  // what the last call left has been read
  for (int i = threadIdx.x; i < candidates; i += kThreads) {
    const int block = free.begin + i;
    const int first = max(kBlockWindows * block - 1, 0);
    const int end = min(kBlockWindows * (block + 1), num_windows);
    float best = -INFINITY;
    for (int j = first; j < end; ++j) best = fmaxf(best, scores[j]);
    keys[i] = ScoreKey(best);
    chosen[i] = !free.is_choice();
  }
  __syncthreads();
  if (!free.is_choice()) return;
  const auto count_from = [&](uint32_t least) {
    int count = 0;
    for (int first = 0; first < candidates; first += kThreads) {
      const int i = first + threadIdx.x;
      count += __syncthreads_count(i < candidates && keys[i] >= least);
    }
    return count;
  };
  uint32_t cut = 0;  // the lowest key that is chosen
  for (int bit = 31; bit >= 0; --bit) {
    if (count_from(cut | 1u << bit) >= free.wanted) cut |= 1u << bit;
  }
  const int ties = free.wanted - (cut == ~0u ? 0 : count_from(cut + 1));
  for (int i = threadIdx.x; i < candidates; i += kThreads) {
    int before = 0;  // ties below it
    for (int k = 0; keys[i] == cut && k < i && before < ties; ++k) before += keys[k] == cut;
    chosen[i] = keys[i] > cut || (keys[i] == cut && before < ties);
  }
  __syncthreads();
}

// Both sides of the partition: rest buckets and sums, after raising.
struct Partition {
  float rest_teacher, rest_student;
  float teacher_sum, student_sum;
};

__device__ float TermOf(float teacher, float student, const Partition& all) {
  const float t = fmaxf(teacher, kFloor) / all.teacher_sum;
  const float p = fmaxf(student, kFloor) / all.student_sum;
  return t * logf(t / p);
}

__device__ float DerivativeOf(float teacher, float student, const Partition& all) {
  if (student <= kFloor) return 0.0f;
  return 1.0f / all.student_sum - fmaxf(teacher, kFloor) / (all.teacher_sum * student);
}

struct LossRow {
  const float* teacher;
  const float* products;
  Element* gradients;  // null: only measured
  int count;           // windows
  int padded;          // up to which gradients are read
  float largest;       // product
  float inverse_sum;   // 1 / sum of exponentials

  __device__ float ShareAt(int j) const { return expf(products[j] - largest) * inverse_sum; }
};

// kept(j): whether window j stands for itself.
template <class Kept>
__device__ Partition PartitionOf(const LossRow& row, const Kept& kept) {
  float teacher = 0, student = 0, raised_teacher = 0, raised_student = 0;
  for (int j = threadIdx.x; j < row.count; j += kThreads) {
    if (!kept(j)) continue;
    const float t = row.teacher[j], p = row.ShareAt(j);
    teacher += t;
    student += p;
    raised_teacher += fmaxf(t, kFloor);
    raised_student += fmaxf(p, kFloor);
  }
  Partition all;
  all.rest_teacher = 1.0f - SumCta(teacher);
  all.rest_student = 1.0f - SumCta(student);
  all.teacher_sum = fmaxf(all.rest_teacher, kFloor) + SumCta(raised_teacher);
  all.student_sum = fmaxf(all.rest_student, kFloor) + SumCta(raised_student);
  return all;
}

template <class Kept>
__device__ float LossOf(const LossRow& row, const Partition& all, const Kept& kept) {
  float terms = 0;
  for (int j = threadIdx.x; j < row.count; j += kThreads) {
    if (kept(j)) terms += TermOf(row.teacher[j], row.ShareAt(j), all);
  }
  return SumCta(terms) + TermOf(all.rest_teacher, all.rest_student, all);
}

template <class Kept>
__device__ void WriteGradients(const LossRow& row, const Partition& all, const Kept& kept) {
  const float of_rest = DerivativeOf(all.rest_teacher, all.rest_student, all);
  const auto derivative_at = [&](int j, float share) {
    return kept(j) ? DerivativeOf(row.teacher[j], share, all) : of_rest;
  };
  float sum = 0;
  for (int j = threadIdx.x; j < row.count; j += kThreads) {
    const float share = row.ShareAt(j);
    sum += share * derivative_at(j, share);
  }
  const float mean = SumCta(sum);
  for (int j = threadIdx.x; j < row.padded; j += kThreads) {
    const float share = j < row.count ? row.ShareAt(j) : 0.0f;
    const float value = j < row.count ? share * (derivative_at(j, share) - mean) : 0.0f;
    row.gradients[j] = FromFloat<Element>(value);
  }
}

// A CTA a (row, kv head).
__global__ void __launch_bounds__(kThreads)
    CompareRowsKernel(ForecastLossParams params, int padded) {
  WaitForPrevious();
  extern __shared__ uint32_t keys[];
  const int row_id = blockIdx.x, kv_head = blockIdx.y;
  const int64_t item = int64_t{row_id} * params.num_kv_heads + kv_head;
  const int position = params.positions[row_id];
  const FreeBlocks free = FreeBlocksAt(position, params.budget);
  const int candidates = free.candidates();
  auto* const by_teacher = reinterpret_cast<uint8_t*>(keys + candidates);
  uint8_t* const by_student = by_teacher + candidates;
  LossRow row{.teacher = params.teacher + item * params.window_stride,
              .products = params.products + item * params.window_stride,
              .gradients = params.derivatives == nullptr ? nullptr
                                                         : static_cast<Element*>(params.gradients) +
                                                               item * params.window_stride,
              .count = CompleteWindows(position),
              .padded = padded,
              .largest = 0,
              .inverse_sum = 0};
  ForecastRowTally tally;
  if (candidates == 0 || free.wanted <= 0 || row.count == 0) {
    for (int j = threadIdx.x; row.gradients != nullptr && j < padded; j += kThreads) {
      row.gradients[j] = FromFloat<Element>(0.0f);
    }
    if (threadIdx.x == 0) params.row_tallies[item] = tally;
    return;
  }
  float largest = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < row.count; j += kThreads) {
    largest = fmaxf(largest, row.products[j]);
  }
  row.largest = MaxCta(largest);
  for (int j = threadIdx.x; j < row.count; j += kThreads) {
    sum += expf(row.products[j] - row.largest);
  }
  row.inverse_sum = 1.0f / SumCta(sum);

  ChooseBlocks(row.teacher, row.count, free, keys, by_teacher);
  const auto kept = [&](int j) {
    const int i = j / kBlockWindows - free.begin;
    return i >= 0 && i < candidates && by_teacher[i] != 0;
  };
  const Partition all = PartitionOf(row, kept);
  tally.rows = 1;
  tally.loss = LossOf(row, all, kept);
  if (row.gradients != nullptr) WriteGradients(row, all, kept);
  if (free.is_choice()) {
    ChooseBlocks(row.products, row.count, free, keys, by_student);
    float shared = 0;
    for (int i = threadIdx.x; i < candidates; i += kThreads) {
      shared += by_teacher[i] != 0 && by_student[i] != 0 ? 1.0f : 0.0f;
    }
    tally.recall = SumCta(shared) / static_cast<float>(free.wanted);
    tally.choices = 1;
  }
  if (threadIdx.x == 0) params.row_tallies[item] = tally;
}

// One CTA: all rows, in one order.
__global__ void __launch_bounds__(kThreads) AddTalliesKernel(ForecastLossParams params) {
  WaitForPrevious();
  __shared__ double loss[kThreads], recall[kThreads];
  __shared__ int64_t rows[kThreads], choices[kThreads];
  const int thread = threadIdx.x;
  ForecastTally own;
  for (int i = thread; i < params.rows * params.num_kv_heads; i += kThreads) {
    const ForecastRowTally row = params.row_tallies[i];
    own.loss += row.loss;
    own.recall += row.recall;
    own.rows += row.rows;
    own.choices += row.choices;
  }
  loss[thread] = own.loss;
  recall[thread] = own.recall;
  rows[thread] = own.rows;
  choices[thread] = own.choices;
  for (int distance = kThreads / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (thread >= distance) continue;
    loss[thread] += loss[thread + distance];
    recall[thread] += recall[thread + distance];
    rows[thread] += rows[thread + distance];
    choices[thread] += choices[thread + distance];
  }
  if (thread != 0) return;
  params.tally->loss += loss[0];
  params.tally->recall += recall[0];
  params.tally->rows += rows[0];
  params.tally->choices += choices[0];
}

}  // namespace

void CudaTrainingOps::ForecastLoss(const ForecastLossParams& params) {
  AUGUR_CHECK(params.dtype == DType::kBF16 && params.rows >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.window_stride % 8 == 0 && params.head_dim % 8 == 0);
  const int windows = CompleteWindows(params.last_position);
  AUGUR_CHECK(windows <= params.window_stride);
  const int candidates = FreeBlocksAt(params.last_position, params.budget).candidates();
  AUGUR_CHECK(candidates <= kMostCandidates);
  if (params.rows == 0) return;
  const int width = params.num_kv_heads * params.head_dim;
  const int64_t item_stride = params.num_kv_heads * params.window_stride;
  const auto* const keys = static_cast<const Element*>(params.keys) + params.head_dim;
  MultiplyTiles({.a = {.data = static_cast<const Element*>(params.forecasts),
                       .stride = width,
                       .batch = params.head_dim},
                 .b = {.data = keys, .stride = params.head_dim, .batch = params.key_stride},
                 .c = params.products,
                 .c_stride = item_stride,
                 .c_batch = params.window_stride,
                 .rows = params.rows,
                 .columns = windows,
                 .summed = params.head_dim,
                 .batches = params.num_kv_heads,
                 .scale = params.scale},
                stream_);
  LaunchShape shape{dim3(params.rows, params.num_kv_heads), dim3(kThreads)};
  shape.shared_bytes = candidates * (sizeof(uint32_t) + 2);
  LaunchKernel(stream_, shape, CompareRowsKernel, params, windows);
  LaunchKernel(stream_, {dim3(1), dim3(kThreads)}, AddTalliesKernel, params);
  if (params.derivatives == nullptr) return;
  MultiplyTiles({.a = {.data = static_cast<const Element*>(params.gradients),
                       .stride = item_stride,
                       .batch = params.window_stride},
                 .b = {.data = keys,
                       .stride = params.head_dim,
                       .batch = params.key_stride,
                       .summed_outside = true},
                 .c = params.derivatives,
                 .c_stride = width,
                 .c_batch = params.head_dim,
                 .rows = params.rows,
                 .columns = params.head_dim,
                 .summed = windows,
                 .batches = params.num_kv_heads,
                 .scale = params.scale},
                stream_);
}

}  // namespace augur::kernels
