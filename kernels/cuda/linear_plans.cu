#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plans.h"
#include "kernels/cuda/linear_trial.h"
#include "kernels/cuda/streamed_linear.h"
#include "kernels/device_failure.h"

namespace augur::kernels {
namespace {

// From this many elements on (2 MiB in 16 bits) the fastest algorithm is worth a search: smaller
// products take as long as a launch.
constexpr int64_t kTimedElements = int64_t{1} << 20;
// cuBLASLt's proposals for one number of rows: it has the fastest among the first few.
constexpr int kProposals = 8;
// Where none of these will do: about all that it knows.
constexpr int kAllProposals = 128;
// The clock's noise. Within it the earlier proposal counts, so that choices seldom differ between
// runs.
constexpr double kWorthwhile = 1.03;

#define AUGUR_CUBLAS(call)                                                                         \
  do {                                                                                             \
    const cublasStatus_t augur_status = (call);                                                    \
    if (augur_status != CUBLAS_STATUS_SUCCESS) {                                                   \
      ReportDeviceFailure(std::string(#call) + ": " + cublasLtGetStatusName(augur_status) + " (" + \
                          __FILE__ + ":" + std::to_string(__LINE__) + ")");                        \
    }                                                                                              \
  } while (false)

cudaDataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// A product in cuBLASLt's words, which has matrices by columns: y^T = W x^T, [out, in] x [in,
// rows], where W comes transposed. Opaque structs on the stack: nothing is allocated.
struct Description {
  Description(const LinearProduct& product, bool with_bias, int sms) {
    const LinearShape& shape = product.shape;
    const cudaDataType type = TypeOf(shape.dtype);
    // Sums in float32, for float32 operands products too (no TF32).
    AUGUR_CUBLAS(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const int32_t transposed = CUBLAS_OP_T;
    Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (sms > 0) Set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t{sms});
    if (with_bias) {
      const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const int32_t bias_type = CUDA_R_32F;
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
      Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    }
    const uint64_t out = shape.out_features;
    const uint64_t in = shape.in_features;
    const uint64_t rows = product.rows;
    AUGUR_CUBLAS(cublasLtMatrixLayoutInit(&weight, type, in, out, shape.in_features));
    AUGUR_CUBLAS(cublasLtMatrixLayoutInit(&x, type, in, rows, product.x_stride));
    AUGUR_CUBLAS(
        cublasLtMatrixLayoutInit(&y, TypeOf(product.y_dtype), out, rows, product.y_stride));
  }

  template <class T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    AUGUR_CUBLAS(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight;
  cublasLtMatrixLayoutOpaque_t x;
  cublasLtMatrixLayoutOpaque_t y;
};

// Without operands: for questions to cuBLASLt.
LinearProduct ProductOf(const LinearShape& shape, DType y_dtype, int rows) {
  return {.shape = shape,
          .y_dtype = y_dtype,
          .rows = rows,
          .x_stride = shape.in_features,
          .y_stride = shape.out_features};
}

struct Preference {
  explicit Preference(uint64_t workspace_bytes) {
    AUGUR_CUBLAS(cublasLtMatmulPreferenceInit(&opaque));
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Parts of a split sum meet in float32 and in order: not in y's own type, nor in place in the
    // order in which they come.
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    const uint32_t alignment = kLinearAlignment;
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  }

  template <class T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    AUGUR_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&opaque, attribute, &value, sizeof(value)));
  }

  cublasLtMatmulPreferenceOpaque_t opaque;
};

// Parts that a row's sum is split into, as far as cuBLASLt says; the trial sees the rest.
int SplitsOf(const cublasLtMatmulAlgo_t& algo) {
  int32_t splits = 1;
  size_t written = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
      &algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &written);
  return status == CUBLAS_STATUS_SUCCESS ? splits : 1;
}

bool Has(const std::vector<LinearPlan>& plans, const LinearPlan& plan) {
  return std::any_of(plans.begin(), plans.end(), [&](const LinearPlan& known) {
    return !known.is_streamed && known.sms == plan.sms &&
           std::memcmp(&known.algo, &plan.algo, sizeof(plan.algo)) == 0;
  });
}

}  // namespace

LinearPlans::LinearPlans(const LinearPlanOptions& options, cudaStream_t stream)
    : options_(options), stream_(stream) {
  AUGUR_CHECK(options.decode_sms >= 0 && options.decode_sms <= options.num_sms);
  AUGUR_CUBLAS(cublasLtCreate(&handle_));
  AUGUR_CUDA(cudaMalloc(&memory_, kWorkspaceBytes + x_scratch_bytes + y_scratch_bytes));
}

LinearPlans::~LinearPlans() {
  cudaStreamSynchronize(stream_);
  cudaFree(memory_);
  cublasLtDestroy(handle_);
}

const LinearPlanSet& LinearPlans::PlansFor(const LinearShape& shape) {
  AUGUR_CHECK(shape.out_features > 0 && shape.out_features % kLinearMultiple == 0 &&
              shape.in_features > 0 && shape.in_features % kLinearMultiple == 0);
  const auto found = plans_.find(shape);
  if (found != plans_.end()) return found->second;
  const bool timed = int64_t{shape.out_features} * shape.in_features >= kTimedElements;
  LinearTrial trial(this, shape,
                    {.times = timed, .held_sms = held_sms(), .decode_rows = options_.decode_rows},
                    stream_);
  LinearPlanSet set{.shape = shape};
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const int place = phase == Phase::kDecode ? 1 : 0;
    set.plans[place][0] = ChoosePlan(shape, phase, DType::kF32, timed, &trial);
    if (shape.dtype == DType::kF32) continue;
    set.plans[place][1] = ChoosePlan(shape, phase, shape.dtype, timed, &trial);
  }
  return plans_.emplace(shape, set).first->second;
}

LinearPlan LinearPlans::ChoosePlan(const LinearShape& shape, Phase phase, DType y_dtype, bool timed,
                                   LinearTrial* trial) const {
  LinearPlan best;
  double best_seconds = 0.0;
  for (const int proposals : {kProposals, kAllProposals}) {
    for (const LinearPlan& plan : FindCandidates(shape, phase, y_dtype, proposals)) {
      if (!trial->RowsAreIndependent(plan, phase, y_dtype)) continue;
      if (!timed) return plan;
      const double seconds = trial->Seconds(plan, phase, y_dtype);
      if (best_seconds > 0.0 && seconds * kWorthwhile > best_seconds) continue;
      best = plan;
      best_seconds = seconds;
    }
    if (best_seconds > 0.0) {
      if (phase == Phase::kDecode) trial->FindPaddedRows(y_dtype, &best);
      return best;
    }
  }
  AUGUR_CHECK(!"cuBLASLt has an algorithm with which rows are independent");
  return best;
}

// Prefill's are those that do not split sums: with many rows there is enough to do in parallel, and
// a split only costs. Decode's may, by a number that the algorithm fixes.
std::vector<LinearPlan> LinearPlans::FindCandidates(const LinearShape& shape, Phase phase,
                                                    DType y_dtype, int count) const {
  std::vector<LinearPlan> plans;
  if (phase == Phase::kPrefill) {
    AddCandidates(shape, phase, y_dtype, count, /*rows=*/2048, /*sms=*/0, &plans);
    return plans;
  }
  if (options_.decode_rows <= kMaxStreamedRows &&
      StreamsWeight(shape, streamed_ctas(/*beside_copies=*/true))) {
    plans.push_back({.is_streamed = true, .adds_bias = y_dtype == DType::kF32});
  }
  for (const int rows : {64, 16}) {
    AddCandidates(shape, phase, y_dtype, count, rows, /*sms=*/0, &plans);
    if (held_sms() > 0) {
      AddCandidates(shape, phase, y_dtype, count, rows, options_.decode_sms, &plans);
    }
  }
  return plans;
}

void LinearPlans::AddCandidates(const LinearShape& shape, Phase phase, DType y_dtype, int count,
                                int rows, int sms, std::vector<LinearPlan>* plans) const {
  Preference preference(kWorkspaceBytes);
  // Not a vector: nvcc 13.0 breaks down over a vector of this type.
  const auto results = std::make_unique<cublasLtMatmulHeuristicResult_t[]>(count);
  Description about(ProductOf(shape, y_dtype, rows), /*with_bias=*/false, sms);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &about.operation, &about.weight, &about.x, &about.y,
                                     &about.y, &preference.opaque, count, results.get(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
  AUGUR_CUBLAS(status);
  for (int i = 0; i < found; ++i) {
    LinearPlan plan{.algo = results[i].algo, .sms = sms};
    if (results[i].state != CUBLAS_STATUS_SUCCESS || Has(*plans, plan)) continue;
    if (phase == Phase::kPrefill && SplitsOf(plan.algo) > 1) continue;
    if (!RunsAnyRows(shape, phase, y_dtype, plan, /*with_bias=*/false)) continue;
    plan.adds_bias =
        y_dtype == DType::kF32 && RunsAnyRows(shape, phase, y_dtype, plan, /*with_bias=*/true);
    plans->push_back(plan);
  }
}

bool LinearPlans::RunsAnyRows(const LinearShape& shape, Phase phase, DType y_dtype,
                              const LinearPlan& plan, bool with_bias) const {
  for (const int rows : {1, 2, 16, 17, 64, 100, 128, 256, 300, 2048, 8191, 16384}) {
    if (rows > MaxLinearRows(phase)) break;
    LinearProduct product = ProductOf(shape, y_dtype, rows);
    // Not read: only its alignment is looked at.
    product.bias = reinterpret_cast<const float*>(static_cast<char*>(memory_) + kLinearAlignment);
    Description about(product, with_bias, plan.sms);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_, &about.operation, &about.weight, &about.x, &about.y,
                                &about.y, &plan.algo, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) return false;
  }
  return true;
}

bool LinearPlans::MultipliesGated(const LinearPlan& plan, const LinearShape& shape) const {
  return plan.is_streamed && StreamsGated(shape, streamed_ctas(/*beside_copies=*/true)) &&
         StreamsGated(shape, streamed_ctas(/*beside_copies=*/false));
}

void LinearPlans::Multiply(const LinearPlan& plan, const LinearProduct& product) {
  AUGUR_CHECK(product.bias == nullptr || plan.adds_bias);
  AUGUR_CHECK(!product.is_gated || MultipliesGated(plan, product.shape));
  if (plan.is_streamed) {
    MultiplyStreamed(product);
    return;
  }
  Description about(product, product.bias != nullptr, plan.sms);
  const float alpha = 1.0f;
  const float beta = product.accumulate ? 1.0f : 0.0f;
  AUGUR_CUBLAS(cublasLtMatmul(handle_, &about.operation, &alpha, product.weight, &about.weight,
                              product.x, &about.x, &beta, product.y, &about.y, product.y, &about.y,
                              &plan.algo, memory_, kWorkspaceBytes, stream_));
}

void LinearPlans::MultiplyStreamed(const LinearProduct& product) {
  for (int row = 0; row < product.rows; row += kMaxStreamedRows) {
    LinearProduct piece = product;
    piece.rows = std::min(kMaxStreamedRows, product.rows - row);
    piece.x =
        static_cast<const char*>(product.x) + row * product.x_stride * BytesOf(product.shape.dtype);
    piece.y = static_cast<char*>(product.y) + row * product.y_stride * BytesOf(product.y_dtype);
    StreamedLinear(piece, streamed_ctas(product.beside_copies), stream_);
  }
}

}  // namespace augur::kernels
