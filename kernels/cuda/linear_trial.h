// Tries an algorithm for a weight shape on random data: whether a row's bits depend on the rows
// beside it, and how long a product takes. Host and device are busy meanwhile.
//
// Thread: the backend's; never while ops are recorded. Ownership: operands and events, until
// destroyed. Failure: no memory is a broken device (device_failure.h), as weights are loaded at
// start.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "kernels/cuda/held_sms.h"
#include "kernels/cuda/linear_plans.h"

namespace augur::kernels {

struct LinearTrialOptions {
  bool times = false;  // Seconds will be asked for, which takes more memory
  int held_sms = 0;    // by copies, while decode's products are timed
  // Of decode's products, at most: those of more rows are not timed.
  int decode_rows = MaxLinearRows(Phase::kDecode);
};

class LinearTrial {
 public:
  LinearTrial(LinearPlans* plans, const LinearShape& shape, const LinearTrialOptions& options,
              cudaStream_t stream);
  ~LinearTrial();
  LinearTrial(const LinearTrial&) = delete;
  LinearTrial& operator=(const LinearTrial&) = delete;

  // Products of few rows, from the first and the last ones of many, against the product of all,
  // bit by bit; with a bias, too, where the plan adds it.
  bool RowsAreIndependent(const LinearPlan& plan, Phase phase, DType y_dtype);

  // Sum over numbers of rows typical of the phase, weights out of L2.
  double Seconds(const LinearPlan& plan, Phase phase, DType y_dtype);
  // plan->padded_rows.
  void FindPaddedRows(DType y_dtype, LinearPlan* plan);

 private:
  int AllRows(Phase phase) const;
  LinearProduct Product(DType y_dtype) const;
  bool RowsAreIndependent(const LinearPlan& plan, Phase phase, DType y_dtype, bool with_bias);
  void CountDifferences(int first_row, int rows, DType y_dtype);
  double SecondsOf(const LinearPlan& plan, DType y_dtype, int rows, int launches, int rounds);

  LinearPlans* const plans_;
  const LinearShape shape_;
  const int decode_rows_;
  const cudaStream_t stream_;
  std::unique_ptr<HeldSms> held_;  // null: none are held
  int num_weights_ = 1;            // copies, to be used in turn
  void* weights_ = nullptr;        // [num_weights_][out_features, in_features]
  void* x_ = nullptr;              // [max AllRows, in_features]
  float* bias_ = nullptr;          // [out_features]
  void* y_of_all_ = nullptr;       // [max AllRows, out_features] float32
  void* y_of_few_ = nullptr;       // [most rows of a few, out_features] float32
  int* differences_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace augur::kernels
