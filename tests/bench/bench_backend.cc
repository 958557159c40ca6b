#include "tests/bench/bench_backend.h"

#include <chrono>
#include <cstdio>

#include "kernels/backend_array.h"
#include "kernels/check.h"
#include "kernels/cpu/fma_peak.h"
#include "kernels/random_weight.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/bandwidth_probe.h"
#include "kernels/cuda/make_cuda_backend.h"
#endif

namespace augur::bench {
namespace {

using kernels::BackendArray;

#ifdef AUGUR_HAS_CUDA
double DeviceFlopsPerSecond(kernels::Backend* backend) {
  constexpr int kSide = 8192;
  constexpr int kProducts = 10;
  const auto weight = backend->PackWeight({.dtype = kernels::DType::kBF16,
                                           .out_features = kSide,
                                           .in_features = kSide,
                                           .random_seed = 1,
                                           .random_scale = 1.0f});
  BackendArray<std::byte> x(backend, size_t{2} * kSide * kSide);
  BackendArray<std::byte> y(backend, size_t{2} * kSide * kSide);
  AUGUR_CHECK(x.allocated() && y.allocated());
  std::vector<uint16_t> random(size_t{kSide} * kSide);
  for (size_t i = 0; i < random.size(); ++i) {
    random[i] = kernels::BF16FromFloat(kernels::RandomWeight(2, i));  // zeros would run faster
  }
  backend->Copy(x.data(), random.data(), x.size());
  const auto product = [&] {
    backend->Linear({.x = x.data(),
                     .weight = weight.get(),
                     .y = y.data(),
                     .rows = kSide,
                     .x_stride = kSide,
                     .y_stride = kSide,
                     .x_dtype = kernels::DType::kBF16,
                     .y_dtype = kernels::DType::kBF16});
  };
  product();
  backend->Synchronize();
  const double seconds = BestSeconds(3, [&] {
    for (int i = 0; i < kProducts; ++i) product();
    backend->Synchronize();
  });
  return 2.0 * kSide * kSide * kSide * kProducts / seconds;
}
#endif

}  // namespace

std::unique_ptr<kernels::Backend> MakeBenchBackend(const std::string& device, int threads) {
  if (device == "cpu") return kernels::MakeCpuBackend({.num_threads = threads});
#ifdef AUGUR_HAS_CUDA
  if (device == "cuda") {
    std::string error;
    auto backend = kernels::MakeCudaBackend({}, &error);
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
               device.c_str());
  return nullptr;
}

Ceilings CeilingsOf(kernels::Backend* backend, const BenchContext& context) {
#ifdef AUGUR_HAS_CUDA
  if (backend->IsDevice()) {
    // One measurement for the whole run: each takes 2 GiB.
    const auto bandwidth = std::make_shared<double>(0);
    return {.flops_per_second = [backend] { return DeviceFlopsPerSecond(backend); },
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
