// Matrix products by cuBLASLt, or by streamed_linear.h: handle, workspace and, for every (weight
// shape, type of y, phase), one algorithm, chosen once and pinned, so that a row's bits do not
// depend on how many rows it comes with.
//
// The algorithm is chosen by running: of those that cuBLASLt proposes, and our own where decode has
// few rows, the ones that give a row the same bits among any others (linear_trial.h), and of these
// the fastest one for large matrices. Two processes may so choose differently; within one all is
// pinned. Where copies run beside decode's products (LinearPlanOptions::decode_sms) the trial runs
// beside CTAs that take as much of as many SMs (held_sms.h): a grid that fills the device to the
// last place is fast alone and a wave longer beside a copy.
//
// Thread: the backend's. Ownership: handle, workspace, scratch. Failure: an error of cuBLASLt or no
// memory at start is a broken device (device_failure.h).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/ops/phase.h"

namespace augur::kernels {

class LinearTrial;  // linear_trial.h

// Rows and columns of weights are padded to multiples of this many elements, which are 16 bytes of
// the narrowest type: what tensor core kernels need of every leading dimension.
inline constexpr int kLinearMultiple = 8;
inline constexpr size_t kLinearAlignment = 16;  // bytes, of every operand and leading dimension

// Rows of one product at most; an algorithm is checked up to there.
constexpr int MaxLinearRows(Phase phase) { return phase == Phase::kDecode ? 256 : 16384; }

struct LinearShape {
  int out_features = 0;  // multiples of kLinearMultiple
  int in_features = 0;
  DType dtype = DType::kF32;

  auto operator<=>(const LinearShape&) const = default;
};

struct LinearPlan {
  // Steps of few rows that are timed: the rest of a larger tile is free, and some of cuBLASLt's
  // algorithms take longer for few rows than for a whole tile.
  static constexpr int kRowSteps[] = {4, 16, 32, 64};

  // How many rows to compute for `rows`, at least as many.
  int PaddedRows(int rows) const {
    for (size_t i = 0; i < std::size(kRowSteps); ++i) {
      if (rows <= kRowSteps[i]) return padded_rows[i] > 0 ? padded_rows[i] : rows;
    }
    return rows;
  }

  bool is_streamed = false;  // by streamed_linear.h, `algo` unused
  cublasLtMatmulAlgo_t algo{};
  int sms = 0;             // that cuBLASLt is told to plan for; 0: all
  bool adds_bias = false;  // the same algorithm takes LinearProduct::bias
  // [of kRowSteps]: what is faster than rows up to that step; 0: nothing.
  int padded_rows[std::size(kRowSteps)] = {};
};

// The plans of one shape.
struct LinearPlanSet {
  LinearShape shape;
  LinearPlan plans[2][2];  // [phase][y of 16 bits]

  const LinearPlan& Of(Phase phase, DType y_dtype) const {
    return plans[phase == Phase::kDecode ? 1 : 0][y_dtype == DType::kF32 ? 0 : 1];
  }
};

// y = x W^T (+ y) (+ bias), operands aligned to kLinearAlignment.
struct LinearProduct {
  LinearShape shape;
  const void* weight = nullptr;  // [out_features, in_features] of the shape's type
  const void* x = nullptr;       // [rows, in_features] of the shape's type
  const float* bias = nullptr;   // [out_features] or null; only if the plan adds it, y of kF32
  void* y = nullptr;             // [rows, out_features] of y_dtype
  DType y_dtype = DType::kF32;   // kF32 or the shape's type
  int rows = 0;
  int64_t x_stride = 0;  // elements
  int64_t y_stride = 0;
  bool accumulate = false;
  bool beside_copies = false;
  // y is silu(first half of the columns) * second half, [rows, out_features / 2]: where
  // LinearPlans::MultipliesGated says so.
  bool is_gated = false;
};

struct LinearPlanOptions {
  int num_sms = 0;     // of the device
  int decode_sms = 0;  // that products in Phase::kDecode have for themselves; 0: all
  // Rows that these have at most, but for rare ones, and for which they are timed.
  int decode_rows = MaxLinearRows(Phase::kDecode);
};

class LinearPlans {
 public:
  LinearPlans(const LinearPlanOptions& options, cudaStream_t stream);
  ~LinearPlans();
  LinearPlans(const LinearPlans&) = delete;
  LinearPlans& operator=(const LinearPlans&) = delete;

  // Chosen when the shape is first seen (milliseconds; synchronises, allocates and frees: not while
  // ops are recorded). Valid as long as this.
  const LinearPlanSet& PlansFor(const LinearShape& shape);

  // Whether Multiply takes a product that is_gated, without bias, y of the shape's type.
  bool MultipliesGated(const LinearPlan& plan, const LinearShape& shape) const;
  // 1 <= rows <= MaxLinearRows of the plan's phase.
  void Multiply(const LinearPlan& plan, const LinearProduct& product);

  // For operands that are not aligned: x_scratch_bytes and y_scratch_bytes of device memory, used
  // in the stream's order.
  void* x_scratch() const { return static_cast<char*>(memory_) + kWorkspaceBytes; }
  void* y_scratch() const { return static_cast<char*>(x_scratch()) + x_scratch_bytes; }
  static constexpr size_t x_scratch_bytes = size_t{16} << 20;
  static constexpr size_t y_scratch_bytes = size_t{32} << 20;  // 64 rows of 128K float32

 private:
  // What NVIDIA recommends for Hopper.
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // SMs that others hold while decode's products run.
  int held_sms() const {
    return options_.decode_sms == 0 ? 0 : options_.num_sms - options_.decode_sms;
  }
  // Of a streamed product. A CTA that finds its SM held by a copy would begin when another has
  // ended: fewer CTAs with more to do each are 4 % (batch 4) and 8 % of a step (batch 8) faster.
  int streamed_ctas(bool beside_copies) const {
    constexpr int kCopyCtas = 4;  // of most steps at most
    if (held_sms() > 0 || !beside_copies) return options_.num_sms - held_sms();
    return options_.num_sms - kCopyCtas;
  }
  std::vector<LinearPlan> FindCandidates(const LinearShape& shape, Phase phase, DType y_dtype,
                                         int count) const;
  void AddCandidates(const LinearShape& shape, Phase phase, DType y_dtype, int count, int rows,
                     int sms, std::vector<LinearPlan>* plans) const;
  bool RunsAnyRows(const LinearShape& shape, Phase phase, DType y_dtype, const LinearPlan& plan,
                   bool with_bias) const;
  LinearPlan ChoosePlan(const LinearShape& shape, Phase phase, DType y_dtype, bool timed,
                        LinearTrial* trial) const;

  void MultiplyStreamed(const LinearProduct& product);

  const LinearPlanOptions options_;
  const cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  void* memory_ = nullptr;  // workspace, x_scratch, y_scratch
  std::map<LinearShape, LinearPlanSet> plans_;
};

}  // namespace augur::kernels
