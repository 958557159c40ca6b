#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/cpu_training_ops.h"

namespace augur::kernels {
namespace {

// Room for split attention. One decode row of 32 heads of 128 over 128 Ki tokens fills 2.4 MB;
// spans that find no room left are not split (slower, same bits).
constexpr size_t kPartialBytesPerThread = size_t{4} << 20;

bool Supports(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAuto:
    case CpuIsa::kGeneric:
      return true;
    case CpuIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case CpuIsa::kAvx512:
      return Supports(CpuIsa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
  }
  return false;
}

}  // namespace

CpuIsa DetectCpuIsa() {
  if (Supports(CpuIsa::kAvx512)) return CpuIsa::kAvx512;
  if (Supports(CpuIsa::kAvx2)) return CpuIsa::kAvx2;
  return CpuIsa::kGeneric;
}

const IsaKernels& KernelsFor(CpuIsa isa) {
  AUGUR_CHECK(Supports(isa));
  switch (isa == CpuIsa::kAuto ? DetectCpuIsa() : isa) {
    case CpuIsa::kAvx512:
      return Avx512Kernels();
    case CpuIsa::kAvx2:
      return Avx2Kernels();
    default:
      return GenericKernels();
  }
}

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

CpuBackend::CpuBackend(const CpuBackendOptions& options)
    : isa_(KernelsFor(options.isa)),
      pool_(options.num_threads),
      partials_(kPartialBytesPerThread * options.num_threads),
      sampling_scratch_(options.num_threads),
      select_scratch_(options.num_threads) {
  const size_t floats = std::max<size_t>(AttentionScratchFloats(kMaxHeadDim), kLinearScratchFloats);
  AUGUR_CHECK(partials_.data() != nullptr);
  for (int thread = 0; thread < options.num_threads; ++thread) {
    thread_scratch_.emplace_back(floats * sizeof(float));
    AUGUR_CHECK(thread_scratch_.back().data() != nullptr);
  }
}

CpuBackend::~CpuBackend() = default;

TrainingOps* CpuBackend::training_ops() {
  if (training_ops_ == nullptr) training_ops_ = std::make_unique<CpuTrainingOps>(&pool_);
  return training_ops_.get();
}

std::string CpuBackend::Describe() const {
  return std::string("cpu ") + isa_.name + " x" + std::to_string(pool_.num_threads());
}

void* CpuBackend::Allocate(size_t bytes) {
  const size_t least = std::max<size_t>(bytes, 1);
  if (least > SIZE_MAX - kVectorAlignment) return nullptr;
  return std::aligned_alloc(kVectorAlignment,
                            (least + kVectorAlignment - 1) / kVectorAlignment * kVectorAlignment);
}

void CpuBackend::Free(void* data) { std::free(data); }

void CpuBackend::Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace augur::kernels
