#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

// How fine windows are gathered to windows of 32 tokens. Released: 17 from 1 before; exact: the 31
// that lie inside.
struct FineAlignment {
  int before = 1;
  int tokens = 17;
};

// What Forecast heads are trained towards (SparDA Sec. 4.2, Eq. 6): where a layer's own query heads
// look, as one distribution over the compressed keys for each (row, kv head).
//
//   fine     T[j'] = sum over the heads h of the group of softmax_j'(q_h . (k_j' + k_j'+1) / 2 *
//            scale), over fine windows that are complete for the row; then
//            A[j] = the largest T in [16 j - before, 16 j - before + tokens), for complete windows
//            of 32
//   coarse   A[j] = sum over h of softmax_j(q_h . K1[j] * scale): the teacher of the paper's
//            ablation, on the compressed keys themselves
//
// and A / sum(A). The released code lets a fine window begin at the row's own token, one whose
// second key lies in the future; here windows are complete, which changes the normaliser of each
// head by that one window and no A[j] otherwise (16 j + 31 is at most the row's position).
struct ForecastTeacherParams {
  const void* q = nullptr;             // [rows, q_stride] of dtype: q heads after RoPE
  const int32_t* positions = nullptr;  // [rows], ascending
  // [num_kv_heads][key_stride] of dtype. Fine: window t at place t, [head_dim] each; coarse: window
  // j at place j + 1, what stands at place 0 is finite and never counts.
  const void* keys = nullptr;
  float* windows = nullptr;  // [rows][num_kv_heads][window_stride]: CompleteWindows(position) each
  // A device's: TeacherScratchFloats, of as many places as the last row has, at least.
  float* scratch = nullptr;
  size_t scratch_floats = 0;
  int64_t key_stride = 0;  // elements between kv heads
  int64_t window_stride = 0;
  int rows = 0;
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads_per_group = 0;  // at most 16 on a device
  int head_dim = 0;         // on a device a multiple of 8, at most 128
  int last_position = 0;    // positions[rows - 1], which the host knows
  float scale = 1.0f;
  bool is_fine = true;
  FineAlignment alignment = {};
  DType dtype = DType::kF32;  // kF32 on the CPU, kBF16 anywhere
};

// Places are split in as many shares at most, for the sake of long rows.
inline constexpr int kTeacherShares = 16;

// places: of the longest row, fine or coarse. T of every row, and a maximum and a sum for each
// share of each of its query heads.
constexpr size_t TeacherScratchFloats(int rows, int num_kv_heads, int64_t places) {
  constexpr size_t kMostHeads = 16, kTile = 128, kPacked = 128;
  const size_t stride = (static_cast<size_t>(places) + kTile - 1) / kTile * kTile;
  return size_t(num_kv_heads) *
         (rows * stride + (rows * kMostHeads + kPacked) * kTeacherShares * 2);
}

}  // namespace augur::kernels
