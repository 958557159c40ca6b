#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mbarrier.h"
#include "kernels/cuda/silu.h"
#include "kernels/cuda/streamed_linear.h"
#include "kernels/cuda/warp_math.h"

namespace augur::kernels {
namespace {

constexpr int kWarps = 16;  // that multiply
constexpr int kStreamThreads = kWarps * 32;
constexpr int kThreads = kStreamThreads + 32;
constexpr int kTileRows = 8;      // of W: columns of a tensor core's product
constexpr int kStepColumns = 32;  // of W, 16 bytes a thread: two products
// Steps of a warp's share that x's registers hold: 8 x 8 registers at 16 rows.
constexpr int kMaxSteps = 8;
constexpr int kRingTiles = 2;  // 128 KiB at 8 steps
constexpr int kPieceBytes = 16;
constexpr int kStepBytes = kStreamThreads * kPieceBytes;  // of a ring, all threads'
// Sums of tiles on their way to the warp that adds them up.
constexpr int kSumBuffers = 4;
constexpr int kSumsOfTile = kTileRows * kMaxStreamedRows;
// Tiles of a CTA whose sums over chunks so far are kept: 32 KiB.
constexpr int kMaxKeptTiles = 64;

// In chunks of columns, each warp's share of a chunk one behind the other.
struct ColumnSplit {
  int chunks = 0;  // 0: the columns do not come out even
  int steps = 0;   // of a warp in a chunk
};

ColumnSplit SplitColumns(int in_features) {
  if (in_features % (kWarps * kStepColumns) != 0) return {};
  const int steps = in_features / (kWarps * kStepColumns);
  int chunks = (steps + kMaxSteps - 1) / kMaxSteps;
  while (steps % chunks != 0) ++chunks;
  return {.chunks = chunks, .steps = steps / chunks};
}

// At least a pair of rows for each.
int CtasFor(int out_features, int sms) { return std::min(sms, out_features / 2); }

int MaxTiles(int out_features, int ctas) {
  const int pairs = (out_features / 2 + ctas - 1) / ctas;
  return (2 * pairs + kTileRows - 1) / kTileRows;
}

struct StreamedParams {
  const void* weight = nullptr;  // [out_features, in_features]
  const void* x = nullptr;       // [rows, in_features], rows x_stride apart
  const float* bias = nullptr;   // [out_features] or null
  void* y = nullptr;             // [rows, out_features], rows y_stride apart
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  int out_features = 0;
  int in_features = 0;
  int rows = 0;
  ColumnSplit split;
  bool accumulate = false;
};

struct Shared {
  uint64_t full[kSumBuffers];  // all warps' parts of a tile are there
  uint64_t empty[kSumBuffers];
  float4 parts[kSumBuffers][kWarps][32];  // as a warp's lanes hold them
};

// The rows of W that a CTA takes; pairs, so that y is written in pairs.
struct TileRange {
  int first = 0;
  int end = 0;
  __device__ explicit TileRange(int out_features) {
    const int64_t pairs = out_features / 2;
    first = 2 * static_cast<int>(pairs * blockIdx.x / gridDim.x);
    end = 2 * static_cast<int>(pairs * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ int tiles() const { return (end - first + kTileRows - 1) / kTileRows; }
};

// Gated: W is gates, then ups, and a CTA takes the same share of both: a tile of gates, then the
// tile of ups that belongs to it. Its share is one of out_features / 2 rows.
__device__ inline int SharedRows(const StreamedParams& params, bool is_gated) {
  return is_gated ? params.out_features / 2 : params.out_features;
}

// One warp that multiplies. A lane (g = lane / 4, t = lane % 4) reads of each step columns 8 t to
// 8 t + 7 of W's row g and of x's rows g and g + 8: which columns are which of a product's depth is
// free, as long as both operands agree.
template <class T, int kRows, bool kGated>
class Streamer {
 public:
  __device__ Streamer(const StreamedParams& params, std::byte* ring)
      : params_(params),
        range_(SharedRows(params, kGated)),
        tiles_(range_.tiles() * (kGated ? 2 : 1)),
        warp_(threadIdx.x / 32),
        group_(threadIdx.x % 32 / 4),
        ring_(SharedAddress(ring) + threadIdx.x * kPieceBytes) {
    const int column = warp_ * params.split.steps * kStepColumns + threadIdx.x % 4 * 8;
    next_ = static_cast<const char*>(params.weight) +
            (size_t(range_.first + group_) * params.in_features + column) * sizeof(T);
    x_ = static_cast<const T*>(params.x) + column;
  }

  // W alone: before the predecessor is waited for.
  __device__ void FillRing() {
    for (int tile = 0; tile < kRingTiles; ++tile) {
#pragma unroll
      for (int step = 0; step < kMaxSteps; ++step) LoadStep(tile, step);
      AdvanceLoads();
    }
  }

  __device__ void Run(Shared* shared) {
    int item = 0;
    for (int chunk = 0; chunk < params_.split.chunks; ++chunk) {
      LoadX(chunk);
      for (int tile = 0; tile < tiles_; ++tile, ++item) MultiplyTile(item, shared);
    }
  }

 private:
  // Of the tile that the loads are at; each is a group of its own, empty ones too, so that the
  // group of a step is always as many behind.
  __device__ void LoadStep(int slot, int step) {
    if (load_chunk_ < params_.split.chunks && step < params_.split.steps) {
      // A row past the CTA's share is not read and counts as zeros.
      const uint32_t bytes = load_row_ + group_ < range_.end ? kPieceBytes : 0;
      // 128 bytes at once into L2: gate and up of an 8B model take 64.3 us so, 66.9 by 256 bytes
      // and 71.7 without (H200, 4 rows).
      asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                       ring_ + (slot * kMaxSteps + step) * kStepBytes),
                   "l"(bytes > 0 ? next_ + step * (kStepColumns * sizeof(T)) : params_.weight),
                   "r"(bytes)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ void AdvanceLoads() {
    if constexpr (kGated) {
      const size_t to_ups = size_t(params_.out_features / 2) * params_.in_features * sizeof(T);
      loads_ups_ = !loads_ups_;
      if (loads_ups_) {
        next_ += to_ups;
        return;
      }
      next_ -= to_ups;
    }
    load_row_ += kTileRows;
    next_ += size_t(kTileRows) * params_.in_features * sizeof(T);
    if (load_row_ < range_.end) return;
    next_ -= size_t(load_row_ - range_.first) * params_.in_features * sizeof(T);
    next_ += size_t(kWarps) * params_.split.steps * kStepColumns * sizeof(T);
    load_row_ = range_.first;
    ++load_chunk_;
  }

  __device__ void LoadX(int chunk) {
    const T* x = x_ + size_t(chunk) * kWarps * params_.split.steps * kStepColumns;
#pragma unroll
    for (int step = 0; step < kMaxSteps; ++step) {
#pragma unroll
      for (int half = 0; half < kRows / 8; ++half) {
        const int row = group_ + 8 * half;
        const bool is_there = row < params_.rows && step < params_.split.steps;
        x_pieces_[step][half] =
            is_there
                ? *reinterpret_cast<const uint4*>(x + row * params_.x_stride + step * kStepColumns)
                : uint4{};
      }
    }
  }

  __device__ void MultiplyTile(int item, Shared* shared) {
    float sums[4] = {};
    const int slot = item % kRingTiles;
#pragma unroll
    for (int step = 0; step < kMaxSteps; ++step) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kRingTiles * kMaxSteps - 1) : "memory");
      if (step < params_.split.steps) {
        uint4 w;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "r"(ring_ + (slot * kMaxSteps + step) * kStepBytes)
                     : "memory");
        const uint4 low = x_pieces_[step][0];
        const uint4 high = kRows > 8 ? x_pieces_[step][kRows / 8 - 1] : uint4{};
        const uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second[4] = {low.z, high.z, low.w, high.w};
        MultiplyAdd<T>(sums, first, w.x, w.y);
        MultiplyAdd<T>(sums, second, w.z, w.w);
      }
      LoadStep(slot, step);
    }
    AdvanceLoads();
    const int buffer = item % kSumBuffers;
    WaitForBarrier(&shared->empty[buffer], (item / kSumBuffers + 1) % 2);
    shared->parts[buffer][warp_][threadIdx.x % 32] =
        make_float4(sums[0], sums[1], sums[2], sums[3]);
    ArriveAt(&shared->full[buffer]);
  }

  const StreamedParams& params_;
  const TileRange range_;
  const int tiles_;
  const int warp_;
  const int group_;
  const uint32_t ring_;
  const char* next_;  // where this lane's loads are
  int load_row_ = range_.first;
  int load_chunk_ = 0;
  bool loads_ups_ = false;
  const T* x_;
  uint4 x_pieces_[kMaxSteps][kRows / 8];
};

// The warp that adds up tiles and writes y. A lane holds y at rows g and g + 8, columns 2 t and
// 2 t + 1 of the tile.
template <class Y, bool kGated>
class Finisher {
 public:
  __device__ Finisher(const StreamedParams& params, Shared* shared, float4* kept)
      : params_(params), range_(SharedRows(params, kGated)), shared_(shared), kept_(kept) {}

  __device__ void Run() {
    if constexpr (kGated) {
      RunGated();
    } else {
      RunPlain();
    }
  }

 private:
  __device__ void RunPlain() {
    const int tiles = range_.tiles();
    int item = 0;
    for (int chunk = 0; chunk < params_.split.chunks; ++chunk) {
      for (int tile = 0; tile < tiles; ++tile, ++item) {
        float4 sum = AddParts(item);
        float4* kept = kept_ + tile * 32 + lane_;
        if (chunk > 0) sum = Add(*kept, sum);
        if (chunk + 1 < params_.split.chunks) {
          *kept = sum;
        } else {
          Write(tile, sum);
        }
      }
    }
  }

  // As GatedSilu computes it of gates and ups that have been written.
  static __device__ float Gate(float gate, float up) {
    return Silu<Y>(ToFloat(FromFloat<Y>(gate))) * ToFloat(FromFloat<Y>(up));
  }

  __device__ void RunGated() {
    for (int tile = 0; tile < range_.tiles(); ++tile) {
      const float4 gate = AddParts(2 * tile);
      const float4 up = AddParts(2 * tile + 1);
      Write(tile, make_float4(Gate(gate.x, up.x), Gate(gate.y, up.y), Gate(gate.z, up.z),
                              Gate(gate.w, up.w)));
    }
  }

  static __device__ float4 Add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }

  __device__ float4 AddParts(int item) {
    const int buffer = item % kSumBuffers;
    WaitForBarrier(&shared_->full[buffer], item / kSumBuffers % 2);
    float4 sum = shared_->parts[buffer][0][lane_];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) sum = Add(sum, shared_->parts[buffer][warp][lane_]);
    ArriveAt(&shared_->empty[buffer]);
    return sum;
  }

  __device__ void Write(int tile, float4 sum) {
    const int column = range_.first + tile * kTileRows + lane_ % 4 * 2;
    if (column >= range_.end) return;
    if (params_.bias != nullptr) {
      const float first = params_.bias[column], second = params_.bias[column + 1];
      sum = Add(sum, make_float4(first, second, first, second));
    }
    const int row = lane_ / 4;
    if (row < params_.rows) WritePair(row, column, sum.x, sum.y);
    if (row + 8 < params_.rows) WritePair(row + 8, column, sum.z, sum.w);
  }

  __device__ void WritePair(int row, int column, float first, float second) {
    Y* y = static_cast<Y*>(params_.y) + row * params_.y_stride + column;
    if constexpr (std::is_same_v<Y, float>) {
      float2 pair = make_float2(first, second);
      if (params_.accumulate) {
        const float2 old = *reinterpret_cast<const float2*>(y);
        pair = make_float2(old.x + first, old.y + second);
      }
      *reinterpret_cast<float2*>(y) = pair;
    } else {
      *reinterpret_cast<uint32_t*>(y) = PackPair<Y>(first, second);
    }
  }

  const StreamedParams& params_;
  const TileRange range_;
  Shared* const shared_;
  float4* const kept_;
  const int lane_ = threadIdx.x % 32;
};

template <class T, class Y, int kRows, bool kGated>
__global__ void __launch_bounds__(kThreads, 1)
    StreamedLinearKernel(const __grid_constant__ StreamedParams params) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Shared shared;
  std::byte* const ring = memory;
  auto* const kept = reinterpret_cast<float4*>(memory + kRingTiles * kMaxSteps * kStepBytes);
  if (threadIdx.x == 0) {
    for (int buffer = 0; buffer < kSumBuffers; ++buffer) {
      InitBarrier(&shared.full[buffer], kStreamThreads);
      InitBarrier(&shared.empty[buffer], 32);
    }
  }
  __syncthreads();
  if (threadIdx.x < kStreamThreads) {
    Streamer<T, kRows, kGated> streamer(params, ring);
    streamer.FillRing();
    WaitForPrevious();
    streamer.Run(&shared);
  } else {
    WaitForPrevious();
    Finisher<Y, kGated>(params, &shared, kept).Run();
  }
}

template <class T, class Y, int kRows, bool kGated = false>
void Launch(const StreamedParams& params, int ctas, cudaStream_t stream) {
  size_t shared_bytes = size_t(kRingTiles) * kMaxSteps * kStepBytes;
  if (params.split.chunks > 1) {
    shared_bytes += size_t(MaxTiles(params.out_features, ctas)) * kSumsOfTile * sizeof(float);
  }
  // Once for each kernel, before anything is recorded: plans are tried out first.
  static const cudaError_t raised = cudaFuncSetAttribute(
      StreamedLinearKernel<T, Y, kRows, kGated>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      kRingTiles * kMaxSteps * kStepBytes + kMaxKeptTiles * kSumsOfTile * int{sizeof(float)});
  AUGUR_CUDA(raised);
  LaunchKernel(
      stream,
      {.grid = static_cast<unsigned>(ctas), .block = kThreads, .shared_bytes = shared_bytes},
      StreamedLinearKernel<T, Y, kRows, kGated>, params);
}

template <class T>
void LaunchFor(const LinearProduct& product, const StreamedParams& params, int ctas,
               cudaStream_t stream) {
  if (product.is_gated) {
    product.rows <= 8 ? Launch<T, T, 8, true>(params, ctas, stream)
                      : Launch<T, T, 16, true>(params, ctas, stream);
    return;
  }
  const bool is_narrow = product.y_dtype != DType::kF32;
  if (product.rows <= 8) {
    is_narrow ? Launch<T, T, 8>(params, ctas, stream) : Launch<T, float, 8>(params, ctas, stream);
  } else {
    is_narrow ? Launch<T, T, 16>(params, ctas, stream) : Launch<T, float, 16>(params, ctas, stream);
  }
}

}  // namespace

bool StreamsWeight(const LinearShape& shape, int sms) {
  if (shape.dtype == DType::kF32) return false;
  const ColumnSplit split = SplitColumns(shape.in_features);
  if (split.chunks == 0) return false;
  return split.chunks == 1 ||
         MaxTiles(shape.out_features, CtasFor(shape.out_features, sms)) <= kMaxKeptTiles;
}

bool StreamsGated(const LinearShape& shape, int sms) {
  return StreamsWeight(shape, sms) && SplitColumns(shape.in_features).chunks == 1 &&
         shape.out_features % 4 == 0;
}

void StreamedLinear(const LinearProduct& product, int sms, cudaStream_t stream) {
  AUGUR_CHECK(StreamsWeight(product.shape, sms));
  AUGUR_CHECK(!product.is_gated || (StreamsGated(product.shape, sms) && !product.accumulate &&
                                    product.y_dtype == product.shape.dtype));
  AUGUR_CHECK(product.rows > 0 && product.rows <= kMaxStreamedRows);
  const StreamedParams params{.weight = product.weight,
                              .x = product.x,
                              .bias = product.bias,
                              .y = product.y,
                              .x_stride = product.x_stride,
                              .y_stride = product.y_stride,
                              .out_features = product.shape.out_features,
                              .in_features = product.shape.in_features,
                              .rows = product.rows,
                              .split = SplitColumns(product.shape.in_features),
                              .accumulate = product.accumulate};
  const int ctas = CtasFor(product.shape.out_features / (product.is_gated ? 2 : 1), sms);
  if (product.shape.dtype == DType::kBF16) {
    LaunchFor<__nv_bfloat16>(product, params, ctas, stream);
  } else {
    LaunchFor<__half>(product, params, ctas, stream);
  }
}

}  // namespace augur::kernels
