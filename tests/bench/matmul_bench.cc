#include "tests/bench/matmul_bench.h"

#include <algorithm>
#include <random>

#include "kernels/cpu/fma_peak.h"

namespace augur::bench {
namespace {

struct Shape {
  const char* what;
  int out_features;
  int in_features;
};

// The bundled model's matrices, and one of an 8B model.
constexpr Shape kShapes[] = {{"qkv", 768, 320},  {"output", 320, 512}, {"gate_up", 1792, 320},
                             {"down", 320, 896}, {"head", 4096, 320},  {"8B", 4096, 4096}};

void RunShape(kernels::Backend* backend, const BenchContext& context, const Shape& shape,
              kernels::DType dtype, int rows, double peak_gflops) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const size_t weights = size_t(shape.out_features) * shape.in_features;
  std::vector<float> source(weights);
  for (float& value : source) value = uniform(random);
  std::vector<uint16_t> narrow(weights);
  for (size_t i = 0; i < weights; ++i) narrow[i] = kernels::BF16FromFloat(source[i]);
  const bool half = dtype == kernels::DType::kBF16;
  const auto packed =
      backend->PackWeight({.data = half ? static_cast<void*>(narrow.data()) : source.data(),
                           .dtype = dtype,
                           .out_features = shape.out_features,
                           .in_features = shape.in_features});
  std::vector<float> x(size_t(rows) * shape.in_features);
  for (float& value : x) value = uniform(random);
  std::vector<float> y(size_t(rows) * shape.out_features);
  const double flops = 2.0 * rows * static_cast<double>(weights);
  // Enough work that the clock's grain and the first call's page faults do not show.
  const int inner = std::max(1, static_cast<int>(2e9 / flops));
  const double seconds = BestSeconds(context.repeats, [&] {
    for (int i = 0; i < inner; ++i) {
      backend->Linear({.x = x.data(),
                       .weight = packed.get(),
                       .bias = nullptr,
                       .y = y.data(),
                       .rows = rows,
                       .x_stride = shape.in_features,
                       .y_stride = shape.out_features,
                       .accumulate = false});
    }
    backend->Synchronize();
  });
  const double gflops = flops * inner / seconds / 1e9;
  BenchRecord(context, "matmul")
      .Add("weight", std::string(shape.what))
      .Add("n", int64_t{shape.out_features})
      .Add("k", int64_t{shape.in_features})
      .Add("dtype", std::string(kernels::NameOf(dtype)))
      .Add("rows", int64_t{rows})
      .Add("gflops", gflops)
      .Add("of_peak", gflops / peak_gflops)
      .Print();
}

}  // namespace

void RunMatmulBench(kernels::Backend* backend, const BenchContext& context,
                    const std::vector<int>& rows) {
  const double peak = kernels::MeasureFmaPeakGflops(context.threads, kernels::CpuIsa::kAuto);
  BenchRecord(context, "peak").Add("float32_gflops", peak).Print();
  for (const Shape& shape : kShapes) {
    for (const kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kF32}) {
      for (const int count : rows) RunShape(backend, context, shape, dtype, count, peak);
    }
  }
}

}  // namespace augur::bench
