#include "tests/bench/linear_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/make_cuda_backend.h"
#endif

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
constexpr int kDecodeRows[] = {1, 4, 16, 64};
constexpr int kPrefillRows[] = {2048, 8192};
constexpr DType kWeightDType = DType::kBF16;

constexpr Shape kSquare = {"", "square", 8192, 8192, Result::kActivation, true};

// Weights that take turns: four times a card's L2 (60 MB), so that none is found there.
constexpr size_t kRotatedBytes = size_t{256} << 20;
// Of one graph: the host's part of a launch, some 20 us, does not show.
constexpr double kGraphSeconds = 10e-3;
// An H200's, roughly, to guess how many calls that is.
constexpr double kBytesPerSecond = 4e12;
constexpr double kFlopsPerSecond = 7e14;
constexpr size_t kCopyBytes = size_t{256} << 20;
constexpr int kCopies = 8;

std::unique_ptr<Backend> MakeDeviceBackend() {
#ifdef AUGUR_HAS_CUDA
  std::string error;
  std::unique_ptr<Backend> backend = kernels::MakeCudaBackend({}, &error);
  if (backend == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
  return backend;
#else
  std::fprintf(stderr, "this build has no CUDA\n");
  return nullptr;
#endif
}

// Of the device, or the host's that it reaches.
class DeviceMemory {
 public:
  DeviceMemory(Backend* backend, void* data) : backend_(backend), data_(data) {
    if (data_ != nullptr) return;
    std::fprintf(stderr, "not enough memory\n");
    std::exit(2);
  }
  ~DeviceMemory() { backend_->Free(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  Backend* const backend_;
  void* const data_;
};

// Numbers in [-1, 1), as zeros draw less power and so run faster.
void FillWithNumbers(Backend* backend, void* to, size_t bytes, DType dtype) {
  constexpr size_t kPiece = size_t{1} << 20;  // elements
  const size_t piece_bytes = kPiece * kernels::BytesOf(dtype);
  const DeviceMemory piece(backend, backend->AllocateHost(piece_bytes));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t i = 0; i < kPiece; ++i) {
    const float value = uniform(random);
    const uint16_t narrow = kernels::BF16FromFloat(value);
    if (dtype == DType::kF32) {
      std::memcpy(piece.data() + i * sizeof(value), &value, sizeof(value));
    } else {
      std::memcpy(piece.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
    }
  }
  for (size_t place = 0; place < bytes; place += piece_bytes) {
    backend->Copy(static_cast<char*>(to) + place, piece.data(),
                  std::min(piece_bytes, bytes - place));
  }
  backend->Synchronize();
}

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

// Of one call, over a recorded graph of many.
double SecondsOfLinear(Backend* backend, const BenchContext& context, const Shape& shape,
                       const Weights& weights, int rows, Phase phase) {
  const DType x_dtype = backend->ActivationDType(kWeightDType);
  const DType y_dtype = shape.result == Result::kActivation ? x_dtype : DType::kF32;
  const size_t x_bytes = size_t(rows) * shape.in_features * kernels::BytesOf(x_dtype);
  const size_t y_bytes = size_t(rows) * shape.out_features * kernels::BytesOf(y_dtype);
  const DeviceMemory x(backend, backend->Allocate(x_bytes));
  const DeviceMemory y(backend, backend->Allocate(y_bytes));
  FillWithNumbers(backend, x.data(), x_bytes, x_dtype);
  FillWithNumbers(backend, y.data(), y_bytes, y_dtype);
  const double flops = 2.0 * rows * shape.out_features * shape.in_features;
  const double guess = std::max(flops / kFlopsPerSecond, BytesOf(shape) / kBytesPerSecond);
  const int calls = std::max(4, static_cast<int>(std::ceil(kGraphSeconds / guess)));
  const auto graph = backend->Record([&](Backend* recorder) {
    for (int i = 0; i < calls; ++i) {
      recorder->Linear({.x = x.data(),
                        .weight = weights[i % weights.size()].get(),
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

void PrintLinear(const BenchContext& context, const Shape& shape, int rows, Phase phase,
                 double seconds) {
  const double flops = 2.0 * rows * shape.out_features * shape.in_features;
  BenchRecord(context, "linear")
      .Add("model", std::string(shape.model))
      .Add("weight", std::string(shape.what))
      .Add("n", int64_t{shape.out_features})
      .Add("k", int64_t{shape.in_features})
      .Add("dtype", std::string(kernels::NameOf(kWeightDType)))
      .Add("phase", std::string(phase == Phase::kDecode ? "decode" : "prefill"))
      .Add("rows", int64_t{rows})
      .Add("us", seconds * 1e6)
      .Add("weight_gb_per_s", BytesOf(shape) / seconds / 1e9)
      .Add("tflops", flops / seconds / 1e12)
      .Print();
}

void RunShape(Backend* backend, const BenchContext& context, const Shape& shape) {
  const Weights weights = MakeWeights(backend, shape);
  const auto run = [&](int rows, Phase phase) {
    PrintLinear(context, shape, rows, phase,
                SecondsOfLinear(backend, context, shape, weights, rows, phase));
  };
  for (const int rows : kDecodeRows) run(rows, Phase::kDecode);
  if (!shape.in_prefill) return;
  for (const int rows : kPrefillRows) run(rows, Phase::kPrefill);
}

void RunCopies(Backend* backend, const BenchContext& context) {
  const DeviceMemory device(backend, backend->Allocate(kCopyBytes));
  const DeviceMemory host(backend, backend->AllocateHost(kCopyBytes));
  std::memset(host.data(), 1, kCopyBytes);
  const auto rate = [&](void* to, const void* from) {
    const double seconds = BestSeconds(context.repeats, [&] {
      for (int i = 0; i < kCopies; ++i) backend->Copy(to, from, kCopyBytes);
      backend->Synchronize();
    });
    return double(kCopyBytes) * kCopies / seconds / 1e9;
  };
  BenchRecord(context, "ceiling_copy")
      .Add("bytes", int64_t{kCopyBytes})
      .Add("host_to_device_gb_per_s", rate(device.data(), host.data()))
      .Add("device_to_host_gb_per_s", rate(host.data(), device.data()))
      .Print();
}

}  // namespace

bool RunLinearBench(const BenchContext& context) {
  const std::unique_ptr<Backend> backend = MakeDeviceBackend();
  if (backend == nullptr) return false;
  BenchContext on_device = context;
  on_device.backend = backend->Describe();
  for (const Shape& shape : kShapes) RunShape(backend.get(), on_device, shape);
  return true;
}

bool RunCeilingsBench(const BenchContext& context) {
  const std::unique_ptr<Backend> backend = MakeDeviceBackend();
  if (backend == nullptr) return false;
  BenchContext on_device = context;
  on_device.backend = backend->Describe();
  const int rows = kSquare.out_features;
  const Weights weights = MakeWeights(backend.get(), kSquare);
  const double seconds =
      SecondsOfLinear(backend.get(), on_device, kSquare, weights, rows, Phase::kPrefill);
  const double flops = 2.0 * rows * kSquare.out_features * kSquare.in_features;
  BenchRecord(on_device, "ceiling_matrix")
      .Add("n", int64_t{kSquare.out_features})
      .Add("dtype", std::string(kernels::NameOf(kWeightDType)))
      .Add("tflops", flops / seconds / 1e12)
      .Print();
  RunCopies(backend.get(), on_device);
  return true;
}

}  // namespace augur::bench
