#include "tests/bench/bench_backend.h"

#include <cstdio>
#include <optional>

#include "kernels/check.h"
#include "kernels/cpu/fma_peak.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/bandwidth_probe.h"
#include "kernels/cuda/make_cuda_backend.h"
#endif
#include "tests/bench/linear_bench.h"

namespace augur::bench {
#ifdef AUGUR_HAS_CUDA
namespace {

std::optional<kernels::GraphPriorities> PrioritiesNamed(const std::string& name) {
  if (name == "none") return kernels::GraphPriorities::kNone;
  if (name == "copies") return kernels::GraphPriorities::kCopies;
  if (name == "lanes") return kernels::GraphPriorities::kLanes;
  return std::nullopt;
}

}  // namespace
#endif

std::unique_ptr<kernels::Backend> MakeBenchBackend(const BenchBackendOptions& options) {
  if (options.device == "cpu") return kernels::MakeCpuBackend({.num_threads = options.threads});
#ifdef AUGUR_HAS_CUDA
  if (options.device == "cuda") {
    const auto priorities = PrioritiesNamed(options.graph_priorities);
    if (!priorities.has_value()) {
      std::fprintf(stderr, "augur-bench: --graph-priorities: none, copies or lanes\n");
      return nullptr;
    }
    std::string error;
    auto backend = kernels::MakeCudaBackend({.usual_decode_rows = options.decode_rows,
                                             .product_sms = options.product_sms,
                                             .attention_sms = options.attention_sms,
                                             .graph_priorities = *priorities},
                                            &error);
    if (backend == nullptr) std::fprintf(stderr, "augur-bench: %s\n", error.c_str());
    return backend;
  }
#endif
  std::fprintf(stderr, "augur-bench: --device: this build has cpu%s, found \"%s\"\n",
#ifdef AUGUR_HAS_CUDA
               " and cuda",
#else
               "",
#endif
               options.device.c_str());
  return nullptr;
}

Ceilings CeilingsOf(kernels::Backend* backend, const BenchContext& context) {
#ifdef AUGUR_HAS_CUDA
  if (backend->IsDevice()) {
    // One measurement for the whole run: each takes 2 GiB.
    const auto bandwidth = std::make_shared<double>(0);
    return {.flops_per_second = [=] { return MatrixFlopsPerSecond(backend, context); },
            .read_bytes_per_second =
                [bandwidth](double) {
                  if (*bandwidth == 0) *bandwidth = kernels::MeasureReadBytesPerSecond();
                  return *bandwidth;
                }};
  }
#endif
  AUGUR_CHECK(!backend->IsDevice());
  const int threads = context.threads;
  return {.flops_per_second =
              [threads] {
                return kernels::MeasureFmaPeakGflops(threads, kernels::CpuIsa::kAuto) * 1e9;
              },
          .read_bytes_per_second =
              [threads](double bytes) {
                return kernels::MeasureReadBandwidthGBps(threads, static_cast<size_t>(bytes)) * 1e9;
              }};
}

}  // namespace augur::bench
