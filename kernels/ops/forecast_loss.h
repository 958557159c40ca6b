#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/host_device.h"
#include "kernels/kv_page.h"
#include "kernels/ops/select_blocks.h"

namespace augur::kernels {

inline constexpr double kLossFloor = 1e-8;

// Blocks that a budget leaves to the scores at one position.
struct FreeBlocks {
  int begin = 0;  // candidates are [begin, end)
  int end = 0;
  int wanted = 0;  // how many of them are chosen
  AUGUR_HOST_DEVICE constexpr int candidates() const { return end > begin ? end - begin : 0; }
  AUGUR_HOST_DEVICE constexpr bool is_choice() const { return candidates() > wanted; }
};

AUGUR_HOST_DEVICE constexpr FreeBlocks FreeBlocksAt(int position, const SelectionBudget& budget) {
  const int blocks = position / kBlockTokens + 1;
  return {budget.init, blocks - budget.local, budget.top_k - budget.init - budget.local};
}

// Sums over (row, kv head).
struct ForecastTally {
  double loss = 0;
  double recall = 0;
  int64_t rows = 0;     // that had free blocks to choose
  int64_t choices = 0;  // that had more of them than the budget
};

// Of one (row, kv head).
struct ForecastRowTally {
  float loss = 0;
  float recall = 0;
  int32_t rows = 0;
  int32_t choices = 0;
};

// The loss of each (row, kv head) of a Forecast head and its derivative (SparDA Sec. 4.2, Eq. 7, as
// the released training code computes it).
//
// The teacher (forecast_teacher.h) picks the `wanted` free blocks with the largest of its windows
// 4 b - 1 to 4 b + 3, ties to the lower block; each stands for the four windows 4 b to 4 b + 3.
// Those windows stand for themselves, all others together are the rest bucket: rest = 1 - kept, on
// both sides. Values below kLossFloor are raised to it, both sides are divided by their sums, and
// the loss is KL(teacher || student). The student is the softmax over all complete windows of
// forecast . key * scale. Recall: which part of the teacher's blocks the student's products choose.
struct ForecastLossParams {
  const void* forecasts = nullptr;  // [rows][num_kv_heads][head_dim] of dtype
  // [num_kv_heads][key_stride] of dtype: coarse windows, [head_dim] each, window j at place j + 1
  const void* keys = nullptr;
  const float* teacher = nullptr;      // [rows][num_kv_heads][window_stride]
  const int32_t* positions = nullptr;  // [rows], ascending
  // Of the loss by forecasts, [rows][num_kv_heads][head_dim]; null: only measured.
  float* derivatives = nullptr;
  ForecastTally* tally = nullptr;  // [1], added to
  // Scratch, [rows][num_kv_heads][window_stride] each: products, and their derivatives in dtype.
  float* products = nullptr;
  void* gradients = nullptr;
  ForecastRowTally* row_tallies = nullptr;  // [rows][num_kv_heads], written
  int64_t key_stride = 0;                   // elements between kv heads
  int64_t window_stride = 0;                // a multiple of 8
  int rows = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int last_position = 0;  // positions[rows - 1], which the host knows
  SelectionBudget budget;
  float scale = 1.0f;
  DType dtype = DType::kF32;  // kF32 on the CPU, kBF16 anywhere
};

}  // namespace augur::kernels
