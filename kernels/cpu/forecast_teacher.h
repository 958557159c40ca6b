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
//
// Thread: one at a time; works on a team of its own. Ownership: owns scratch of 1 MiB a thread, or
// of what one row of the longest sequence seen needs. Failure: a bad shape is a CHECK.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace augur::kernels {

// How fine windows are gathered to windows of 32 tokens. Released: 17 from 1 before; exact: the 31
// that lie inside.
struct FineAlignment {
  int before = 1;
  int tokens = 17;
};

struct ForecastTeacherParams {
  const float* q = nullptr;            // [rows, q_stride]: q heads after RoPE
  const int32_t* positions = nullptr;  // [rows], ascending
  // [num_kv_heads][key_stride]. Fine: window t at place t, [head_dim] each; coarse: window j at
  // place j + 1, what stands at place 0 is finite and never counts.
  const float* keys = nullptr;
  float* windows = nullptr;  // [rows][num_kv_heads][window_stride]: CompleteWindows(position) each
  int64_t key_stride = 0;    // floats between kv heads
  int64_t window_stride = 0;
  int rows = 0;
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads_per_group = 0;
  int head_dim = 0;
  float scale = 1.0f;
  bool is_fine = true;
  FineAlignment alignment = {};
};

class ForecastTeacher {
 public:
  explicit ForecastTeacher(ThreadPool* pool, CpuIsa isa = CpuIsa::kAuto);
  void Run(const ForecastTeacherParams& params);

 private:
  struct Item {
    int kv_head = 0;
    int first_row = 0;
    int num_rows = 0;
  };
  void Score(const ForecastTeacherParams& params, const Item& item, int thread);

  ThreadPool* const pool_;
  const IsaKernels& isa_;
  std::vector<Item> items_;
  std::vector<AlignedBuffer> scores_;   // [threads]
  std::vector<AlignedBuffer> scratch_;  // [threads]
};

}  // namespace augur::kernels
