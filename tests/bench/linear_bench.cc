#include "tests/bench/linear_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "tests/bench/bench_memory.h"

namespace augur::bench {
namespace {

using kernels::Backend;
using kernels::DType;
using kernels::Phase;

// As a layer calls it: what becomes of y decides its type.
enum class Result { kFloat, kActivation, kResidual };  // kResidual: added to y, in float32

struct Shape {
  const char* model;
  const char* what;
  int out_features;
  int in_features;
  Result result;
  bool in_prefill;  // the head has few rows there
};

constexpr Shape kShapes[] = {
    {"MiniCPM4.1-8B", "qkv", 4608, 4096, Result::kFloat, true},
    {"MiniCPM4.1-8B", "output", 4096, 4096, Result::kResidual, true},
    {"MiniCPM4.1-8B", "gate_up", 32768, 4096, Result::kActivation, true},
    {"MiniCPM4.1-8B", "down", 4096, 16384, Result::kResidual, true},
    {"MiniCPM4.1-8B", "head", 73448, 4096, Result::kFloat, false},
    {"Llama-3.1-8B", "qkv", 6144, 4096, Result::kFloat, true},
    {"Llama-3.1-8B", "output", 4096, 4096, Result::kResidual, true},
    {"Llama-3.1-8B", "gate_up", 28672, 4096, Result::kActivation, true},
    {"Llama-3.1-8B", "down", 4096, 14336, Result::kResidual, true},
    {"Llama-3.1-8B", "head", 128256, 4096, Result::kFloat, false},
};
constexpr DType kWeightDType = DType::kBF16;

constexpr Shape kSquare = {"", "square", 8192, 8192, Result::kActivation, true};

// Weights that take turns: four times a card's L2 (60 MB), so that none is found there.
constexpr size_t kRotatedBytes = size_t{256} << 20;
// Of a weight that stays in L2 from call to call.
constexpr size_t kKeptBytes = size_t{40} << 20;
// Of one graph: the host's part of a launch, some 20 us, does not show.
constexpr double kGraphSeconds = 10e-3;
// An H200's, roughly, to guess how many calls that is.
constexpr double kBytesPerSecond = 4e12;
constexpr double kFlopsPerSecond = 7e14;
constexpr size_t kCopyBytes = size_t{256} << 20;
constexpr int kCopies = 8;

using Weights = std::vector<std::unique_ptr<kernels::PackedWeight>>;

size_t BytesOf(const Shape& shape) {
  return size_t(shape.out_features) * shape.in_features * kernels::BytesOf(kWeightDType);
}

Weights MakeWeights(Backend* backend, const Shape& shape) {
  Weights weights(1 + kRotatedBytes / BytesOf(shape));
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = backend->PackWeight({.dtype = kWeightDType,
                                      .out_features = shape.out_features,
                                      .in_features = shape.in_features,
                                      .random_seed = i,
                                      .random_scale = 0.02f});
  }
  return weights;
}

// Of one call, over a recorded graph of many that take the first num_weights in turn.
double SecondsOfLinear(Backend* backend, const BenchContext& context, const Shape& shape,
                       const Weights& weights, size_t num_weights, int rows, Phase phase) {
  const DType x_dtype = backend->ActivationDType(kWeightDType);
  const DType y_dtype = shape.result == Result::kActivation ? x_dtype : DType::kF32;
  const size_t x_bytes = size_t(rows) * shape.in_features * kernels::BytesOf(x_dtype);
  const size_t y_bytes = size_t(rows) * shape.out_features * kernels::BytesOf(y_dtype);
  auto x = MakeMemory(backend, x_bytes), y = MakeMemory(backend, y_bytes);
  FillWithRandom(backend, x.data(), x_bytes, x_dtype);
  FillWithRandom(backend, y.data(), y_bytes, y_dtype);
  const double flops = 2.0 * rows * shape.out_features * shape.in_features;
  const double guess = std::max(flops / kFlopsPerSecond, BytesOf(shape) / kBytesPerSecond);
  const int calls = std::max(4, static_cast<int>(std::ceil(kGraphSeconds / guess)));
  const auto graph = backend->Record([&](Backend* recorder) {
    for (int i = 0; i < calls; ++i) {
      recorder->Linear({.x = x.data(),
                        .weight = weights[i % num_weights].get(),
                        .y = y.data(),
                        .rows = rows,
                        .x_stride = shape.in_features,
                        .y_stride = shape.out_features,
                        .accumulate = shape.result == Result::kResidual,
                        .phase = phase,
                        .x_dtype = x_dtype,
                        .y_dtype = y_dtype});
    }
  });
  const auto launch = [&] {
    backend->Launch(*graph);
    backend->Synchronize();
  };
  launch();  // the first one loads the graph
  return BestSeconds(context.repeats, launch) / calls;
}

// seconds_in_l2: of a weight that the call before has left in L2; 0: it does not fit.
void PrintLinear(const BenchContext& context, const Shape& shape, int rows, Phase phase,
                 double seconds, double seconds_in_l2) {
  const double flops = 2.0 * rows * shape.out_features * shape.in_features;
  BenchRecord record(context, "linear");
  record.Add("model", std::string(shape.model))
      .Add("weight", std::string(shape.what))
      .Add("n", int64_t{shape.out_features})
      .Add("k", int64_t{shape.in_features})
      .Add("dtype", std::string(kernels::NameOf(kWeightDType)))
      .Add("phase", std::string(phase == Phase::kDecode ? "decode" : "prefill"))
      .Add("rows", int64_t{rows})
      .Add("us", seconds * 1e6)
      .Add("weight_gb_per_s", BytesOf(shape) / seconds / 1e9)
      .Add("tflops", flops / seconds / 1e12);
  if (seconds_in_l2 > 0) record.Add("us_in_l2", seconds_in_l2 * 1e6);
  record.Print();
}

void RunShape(Backend* backend, const BenchContext& context, const LinearBenchOptions& options,
              const Shape& shape) {
  const Weights weights = MakeWeights(backend, shape);
  const auto run = [&](int rows, Phase phase) {
    const double cold =
        SecondsOfLinear(backend, context, shape, weights, weights.size(), rows, phase);
    const double warm = BytesOf(shape) > kKeptBytes || phase != Phase::kDecode
                            ? 0
                            : SecondsOfLinear(backend, context, shape, weights, 1, rows, phase);
    PrintLinear(context, shape, rows, phase, cold, warm);
  };
  for (const int rows : options.decode_rows) run(rows, Phase::kDecode);
  if (!shape.in_prefill) return;
  for (const int rows : options.prefill_rows) run(rows, Phase::kPrefill);
}

void RunCopies(Backend* backend, const BenchContext& context) {
  auto device = MakeMemory(backend, kCopyBytes);
  void* const host = backend->AllocateHost(kCopyBytes);
  AUGUR_CHECK(host != nullptr);
  std::memset(host, 1, kCopyBytes);
  const auto rate = [&](void* to, const void* from) {
    const double seconds = BestSeconds(context.repeats, [&] {
      for (int i = 0; i < kCopies; ++i) backend->Copy(to, from, kCopyBytes);
      backend->Synchronize();
    });
    return double(kCopyBytes) * kCopies / seconds / 1e9;
  };
  BenchRecord(context, "ceiling_copy")
      .Add("bytes", int64_t{kCopyBytes})
      .Add("host_to_device_gb_per_s", rate(device.data(), host))
      .Add("device_to_host_gb_per_s", rate(host, device.data()))
      .Print();
  backend->Free(host);
}

}  // namespace

double MatrixFlopsPerSecond(Backend* backend, const BenchContext& context) {
  const int rows = kSquare.out_features;
  const Weights weights = MakeWeights(backend, kSquare);
  const double flops = 2.0 * rows * kSquare.out_features * kSquare.in_features;
  return flops /
         SecondsOfLinear(backend, context, kSquare, weights, weights.size(), rows, Phase::kPrefill);
}

void RunLinearBench(Backend* backend, const BenchContext& context,
                    const LinearBenchOptions& options) {
  for (const Shape& shape : kShapes) RunShape(backend, context, options, shape);
}

void RunCeilingsBench(Backend* backend, const BenchContext& context, const Ceilings& ceilings) {
  BenchRecord(context, "ceiling_matrix")
      .Add("n", int64_t{kSquare.out_features})
      .Add("dtype", std::string(kernels::NameOf(kWeightDType)))
      .Add("tflops", ceilings.flops_per_second() / 1e12)
      .Print();
  BenchRecord(context, "ceiling_read")
      .Add("gb_per_s", ceilings.read_bytes_per_second(kCopyBytes) / 1e9)
      .Print();
  RunCopies(backend, context);
}

}  // namespace augur::bench
