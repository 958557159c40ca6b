#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_trial.h"
#include "kernels/cuda/random_matrix.h"

namespace augur::kernels {
namespace {

// All and few: around the edges of tiles (16, 64, 128 rows), and numbers whose tiles leave a last
// wave of CTAs half full.
constexpr int kAllDecodeRows = MaxLinearRows(Phase::kDecode);
constexpr int kAllPrefillRows = 2048;
constexpr int kFewDecodeRows[] = {1, 2, 16, 17, 64};
constexpr int kFewPrefillRows[] = {1, 64, 128, 300};
constexpr int kMostFewRows = 300;
// Of y for all of a prefill's rows: a vocabulary's 128K columns get about 1,000 rows.
constexpr size_t kMaxBytesOfY = size_t{512} << 20;

constexpr int kTimedDecodeRows[] = {16, 64};
constexpr int kTimedFewDecodeRows[] = {4, 16};  // where there are 16 at most
// Weights that follow each other must not find each other in L2 (60 MB): four times as much.
constexpr size_t kRotatedBytes = size_t{256} << 20;
// Enough that the time of one host call and of the events does not show.
constexpr int kDecodeLaunches = 16;
constexpr int kPrefillLaunches = 3;
constexpr int kDecodeRounds = 3;  // the fastest counts
constexpr int kPrefillRounds = 2;

// Beyond the clock's noise.
constexpr double kWorthPadding = 1.03;

constexpr uint64_t kWeightSeed = 1;  // any three that differ
constexpr uint64_t kXSeed = 2;
constexpr uint64_t kBiasSeed = 3;

constexpr int kThreads = 256;
constexpr size_t kMaxCtas = 1024;

// *differences += words in which a and b differ.
__global__ void __launch_bounds__(kThreads)
    CountDifferencesKernel(const uint32_t* a, const uint32_t* b, size_t words, int* differences) {
  WaitForPrevious();
  int count = 0;
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * kThreads) {
    if (a[i] != b[i]) ++count;
  }
  if (count > 0) atomicAdd(differences, count);
}

template <class T>
const T* RowOf(const void* matrix, int row, int columns, size_t element) {
  return static_cast<const T*>(
      static_cast<const void*>(static_cast<const char*>(matrix) + size_t(row) * columns * element));
}

}  // namespace

LinearTrial::LinearTrial(LinearPlans* plans, const LinearShape& shape,
                         const LinearTrialOptions& options, cudaStream_t stream)
    : plans_(plans), shape_(shape), decode_rows_(options.decode_rows), stream_(stream) {
  if (options.times && options.held_sms > 0) held_ = std::make_unique<HeldSms>(options.held_sms);
  const size_t element = BytesOf(shape.dtype);
  const size_t weight_bytes = size_t(shape.out_features) * shape.in_features * element;
  if (options.times)
    num_weights_ = static_cast<int>(std::max<size_t>(kRotatedBytes / weight_bytes, 1));
  const int all_rows = std::max(AllRows(Phase::kPrefill), AllRows(Phase::kDecode));
  const size_t y_row_bytes = size_t(shape.out_features) * sizeof(float);
  AUGUR_CUDA(cudaMalloc(&weights_, num_weights_ * weight_bytes));
  AUGUR_CUDA(cudaMalloc(&x_, size_t(all_rows) * shape.in_features * element));
  AUGUR_CUDA(cudaMalloc(&bias_, y_row_bytes));
  AUGUR_CUDA(cudaMalloc(&y_of_all_, all_rows * y_row_bytes));
  AUGUR_CUDA(cudaMalloc(&y_of_few_, kMostFewRows * y_row_bytes));
  AUGUR_CUDA(cudaMalloc(&differences_, sizeof(int)));
  AUGUR_CUDA(cudaEventCreate(&start_));
  AUGUR_CUDA(cudaEventCreate(&stop_));
  const auto fill = [&](void* to, DType dtype, int64_t rows, int64_t columns, uint64_t seed) {
    FillRandom({.to = to,
                .dtype = dtype,
                .rows = rows,
                .columns = columns,
                .padded_rows = rows,
                .padded_columns = columns,
                .seed = seed},
               stream);
  };
  fill(weights_, shape.dtype, int64_t{num_weights_} * shape.out_features, shape.in_features,
       kWeightSeed);
  fill(x_, shape.dtype, all_rows, shape.in_features, kXSeed);
  fill(bias_, DType::kF32, 1, shape.out_features, kBiasSeed);
}

LinearTrial::~LinearTrial() {
  cudaStreamSynchronize(stream_);
  cudaEventDestroy(start_);
  cudaEventDestroy(stop_);
  for (void* data : {weights_, x_, static_cast<void*>(bias_), y_of_all_, y_of_few_,
                     static_cast<void*>(differences_)}) {
    cudaFree(data);
  }
}

int LinearTrial::AllRows(Phase phase) const {
  if (phase == Phase::kDecode) return kAllDecodeRows;
  const size_t rows = kMaxBytesOfY / (size_t(shape_.out_features) * sizeof(float));
  return static_cast<int>(std::clamp<size_t>(rows, kMostFewRows, kAllPrefillRows));
}

LinearProduct LinearTrial::Product(DType y_dtype) const {
  return {.shape = shape_,
          .weight = weights_,
          .x = x_,
          .y = y_of_all_,
          .y_dtype = y_dtype,
          .x_stride = shape_.in_features,
          .y_stride = shape_.out_features};
}

bool LinearTrial::RowsAreIndependent(const LinearPlan& plan, Phase phase, DType y_dtype) {
  return RowsAreIndependent(plan, phase, y_dtype, /*with_bias=*/false) &&
         (!plan.adds_bias || RowsAreIndependent(plan, phase, y_dtype, /*with_bias=*/true));
}

bool LinearTrial::RowsAreIndependent(const LinearPlan& plan, Phase phase, DType y_dtype,
                                     bool with_bias) {
  AUGUR_CUDA(cudaMemsetAsync(differences_, 0, sizeof(int), stream_));
  LinearProduct product = Product(y_dtype);
  product.bias = with_bias ? bias_ : nullptr;
  product.rows = AllRows(phase);
  plans_->Multiply(plan, product);
  const int all_rows = product.rows;
  const std::vector<int> few =
      phase == Phase::kDecode
          ? std::vector<int>(std::begin(kFewDecodeRows), std::end(kFewDecodeRows))
          : std::vector<int>(std::begin(kFewPrefillRows), std::end(kFewPrefillRows));
  product.y = y_of_few_;
  for (const int rows : few) {
    product.rows = rows;
    for (const int first_row : {0, all_rows - rows}) {
      product.x = RowOf<void>(x_, first_row, shape_.in_features, BytesOf(shape_.dtype));
      plans_->Multiply(plan, product);
      CountDifferences(first_row, rows, y_dtype);
    }
  }
  // The form that adds to y, so that its kernel is loaded before anything is recorded.
  if (y_dtype == DType::kF32) {
    product.accumulate = true;
    plans_->Multiply(plan, product);
  }
  int differences = 0;
  AUGUR_CUDA(
      cudaMemcpyAsync(&differences, differences_, sizeof(int), cudaMemcpyDeviceToHost, stream_));
  AUGUR_CUDA(cudaStreamSynchronize(stream_));
  return differences == 0;
}

// Between y_of_few_ and the rows of y_of_all_ from first_row on.
void LinearTrial::CountDifferences(int first_row, int rows, DType y_dtype) {
  const size_t element = BytesOf(y_dtype);
  const size_t words = size_t(rows) * shape_.out_features * element / sizeof(uint32_t);
  const auto ctas = static_cast<unsigned>(std::min((words + kThreads - 1) / kThreads, kMaxCtas));
  LaunchKernel(stream_, {.grid = ctas, .block = kThreads}, CountDifferencesKernel,
               RowOf<uint32_t>(y_of_all_, first_row, shape_.out_features, element),
               static_cast<const uint32_t*>(y_of_few_), words, differences_);
}

double LinearTrial::Seconds(const LinearPlan& plan, Phase phase, DType y_dtype) {
  if (phase == Phase::kPrefill) {
    return SecondsOf(plan, y_dtype, AllRows(phase), kPrefillLaunches, kPrefillRounds);
  }
  double seconds = 0.0;
  if (held_ != nullptr) held_->Hold();
  const bool has_few = decode_rows_ <= kTimedFewDecodeRows[1];
  for (const int rows : has_few ? kTimedFewDecodeRows : kTimedDecodeRows) {
    seconds += SecondsOf(plan, y_dtype, rows, kDecodeLaunches, kDecodeRounds);
  }
  if (held_ != nullptr) held_->Release();
  return seconds;
}

void LinearTrial::FindPaddedRows(DType y_dtype, LinearPlan* plan) {
  constexpr int kSteps = std::size(LinearPlan::kRowSteps);
  double seconds[kSteps];
  for (int i = 0; i < kSteps; ++i) {
    seconds[i] =
        SecondsOf(*plan, y_dtype, LinearPlan::kRowSteps[i], kDecodeLaunches, kDecodeRounds);
  }
  for (int i = 0; i < kSteps; ++i) {
    const double* const fastest = std::min_element(seconds + i, seconds + kSteps);
    const bool is_faster = *fastest * kWorthPadding < seconds[i];
    plan->padded_rows[i] = is_faster ? LinearPlan::kRowSteps[fastest - seconds] : 0;
  }
}

// One product, on average over the launches of the fastest round after one that does not count.
double LinearTrial::SecondsOf(const LinearPlan& plan, DType y_dtype, int rows, int launches,
                              int rounds) {
  LinearProduct product = Product(y_dtype);
  product.rows = rows;
  float best_ms = std::numeric_limits<float>::infinity();
  int next = 0;
  for (int round = 0; round <= rounds; ++round) {
    AUGUR_CUDA(cudaEventRecord(start_, stream_));
    for (int i = 0; i < launches; ++i) {
      product.weight = RowOf<void>(weights_, next * shape_.out_features, shape_.in_features,
                                   BytesOf(shape_.dtype));
      next = (next + 1) % num_weights_;
      plans_->Multiply(plan, product);
    }
    AUGUR_CUDA(cudaEventRecord(stop_, stream_));
    AUGUR_CUDA(cudaEventSynchronize(stop_));
    float ms = 0.0f;
    AUGUR_CUDA(cudaEventElapsedTime(&ms, start_, stop_));
    if (round > 0) best_ms = std::min(best_ms, ms);
  }
  return best_ms / launches * 1e-3;
}

}  // namespace augur::kernels
