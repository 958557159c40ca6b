// The teacher of Forecast training in three launches: the normaliser of every query head (a maximum
// and a sum of exponentials, for each share of the places), the heads' probabilities summed over
// the group, and their gathering to windows.
//
// A tile is 128 packed rows (the heads of a kv head's group, token after token, the group filled up
// to a power of two) times 128 places. Each of two warpgroups has 64 rows, as fragments in
// registers; keys lie in shared memory, in a ring that all threads fill. Two CTAs share an SM, so
// that one's exponentials run beside the other's products.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_operands.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/forecast_teacher.h"

namespace augur::kernels {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 256;  // 16 packed rows a warp
constexpr int kPackedRows = 128;
constexpr int kPlaces = 128;
constexpr int kPlaceTiles = kPlaces / 8;
constexpr int kStages = 3;
constexpr int kLeastShare = 1024;  // places of a share
constexpr float kNoScore = -1e30f;

using Scores = float[kPlaceTiles][4];

struct TeacherTiles {
  const Element* q = nullptr;
  const int32_t* positions = nullptr;
  const Element* keys = nullptr;  // of place 0
  float* sums = nullptr;          // [rows][num_kv_heads][place_stride]: T
  float2* partials = nullptr;     // [shares][num_kv_heads][packed rows]: largest score, sum
  int64_t key_stride = 0;
  int64_t place_stride = 0;
  int rows = 0;
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads = 0;       // of a group
  int group_bits = 0;  // of the power of two that it is filled up to
  int head_dim = 0;
  int share = 0;    // places, a multiple of kPlaces
  float scale = 0;  // of powers of two
  bool is_fine = false;

  __host__ __device__ int tokens() const { return kPackedRows >> group_bits; }  // of a tile
  __device__ int RowOf(int packed) const { return blockIdx.x * tokens() + (packed >> group_bits); }
  __device__ int EndAt(int row) const {
    if (row >= rows) return 0;
    return is_fine ? positions[row] : CompleteWindows(positions[row]);
  }
  __device__ int64_t PartialAt(int share_id, int packed) const {
    return (int64_t{share_id} * num_kv_heads + blockIdx.y) * gridDim.x * kPackedRows +
           blockIdx.x * kPackedRows + packed;
  }
};

// The packed row of the tile that a lane's scores c[0], c[1] (half 0) or c[2], c[3] belong to.
__device__ inline int PackedRow(int half) {
  return threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
}

template <int kDim>
__device__ void LoadQueryRows(const TeacherTiles& tiles, Queries<kDim>& q) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int packed = PackedRow(half);
    const int row = tiles.RowOf(packed), head = packed & ((1 << tiles.group_bits) - 1);
    const bool is_there = row < tiles.rows && head < tiles.heads;
    const int first = threadIdx.x % 4 * 2;
    const Element* const from = tiles.q + int64_t{row} * tiles.q_stride +
                                (blockIdx.y * tiles.heads + head) * tiles.head_dim + first;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      const bool has_columns = is_there && i * 8 < tiles.head_dim;
      q[i / 2][i % 2 * 2 + half] =
          has_columns ? *reinterpret_cast<const uint32_t*>(from + i * 8) : 0u;
    }
  }
}

// A CTA's places [first, end), and the ends of what a lane's rows see.
struct TileEnds {
  int own[2];
  int first, end;
  int least;  // of all tokens
};

__device__ TileEnds EndsOf(const TeacherTiles& tiles) {
  const int first_row = blockIdx.x * tiles.tokens();
  TileEnds ends;
  ends.own[0] = tiles.EndAt(tiles.RowOf(PackedRow(0)));
  ends.own[1] = tiles.EndAt(tiles.RowOf(PackedRow(1)));
  ends.first = blockIdx.z * tiles.share;
  const int end_row = min(first_row + tiles.tokens(), tiles.rows);
  ends.end = min(tiles.EndAt(end_row - 1), ends.first + tiles.share);
  ends.least = end_row < first_row + tiles.tokens() ? 0 : tiles.EndAt(first_row);
  return ends;
}

// Walks the CTA's share of the places: body(first place, scores as they leave the tensor cores).
template <int kDim>
struct PlaceWalk {
  static constexpr int kTileBytes = kPlaces * kDim * static_cast<int>(sizeof(Element));
  static constexpr int kBytes = kStages * kTileBytes;

  // Keys from `end` on and columns behind the head's are 0.
  static __device__ void Load(const TeacherTiles& tiles, int first, int end, uint32_t to) {
    constexpr int kAcross = kDim / 8;
    const Element* const keys = tiles.keys + blockIdx.y * tiles.key_stride;
#pragma unroll
    for (int n = 0; n < kPlaces * kAcross / kThreads; ++n) {
      const int chunk = n * kThreads + threadIdx.x;
      const int row = chunk / kAcross, across = chunk % kAcross;
      const bool is_there = first + row < end && across * 8 < tiles.head_dim;
      const int64_t place = min(first + row, end - 1);
      const Element* from = keys + place * tiles.head_dim + (is_there ? across * 8 : 0);
      asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                       to + SwizzledColumnOffset<kPlaces>(row, across)),
                   "l"(from), "r"(is_there ? 16 : 0)
                   : "memory");
    }
  }

  template <class Body>
  static __device__ void Run(const TeacherTiles& tiles, const Queries<kDim>& q,
                             const TileEnds& ends, const Body& body) {
    extern __shared__ __align__(1024) std::byte shared[];
    const uint32_t ring = SharedAddress(shared);
    if (ring % 1024 != 0) __trap();  // swizzling goes by addresses
    const int steps = (ends.end - ends.first + kPlaces - 1) / kPlaces;
    const auto load = [&](int step) {
      if (step < steps) {
        Load(tiles, ends.first + step * kPlaces, ends.end, ring + step % kStages * kTileBytes);
      }
      CommitCopies();
    };
    for (int step = 0; step < kStages - 1; ++step) load(step);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      WaitForCopyGroups<kStages - 2>();
      PublishToProducts();
      __syncthreads();
      load(step + kStages - 1);
      Scores scores;
      StartScores<Element, kDim>(q, ring + step % kStages * kTileBytes, scores);
      WaitForProducts<0>();
      KeepInOrder(scores);
      body(ends.first + step * kPlaces, scores);
    }
  }
};

// Scores at and behind a row's end become minus infinity.
__device__ __forceinline__ void Mask(const TileEnds& ends, int place, Scores& scores) {
  if (place + kPlaces <= ends.least) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int left = ends.own[half] - place - static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int n = 0; n < kPlaceTiles; ++n) {
      if (n * 8 >= left) scores[n][half * 2] = -INFINITY;
      if (n * 8 + 1 >= left) scores[n][half * 2 + 1] = -INFINITY;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) NormaliseKernel(TeacherTiles tiles) {
  WaitForPrevious();
  const TileEnds ends = EndsOf(tiles);
  if (ends.first >= ends.end) return;
  Queries<kDim> q;
  LoadQueryRows<kDim>(tiles, q);
  float largest[2] = {kNoScore, kNoScore}, sums[2] = {};
  PlaceWalk<kDim>::Run(tiles, q, ends, [&](int place, Scores& scores) {
    Mask(ends, place, scores);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[half];
#pragma unroll
      for (int n = 0; n < kPlaceTiles; ++n) {
        most = fmaxf(most, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
      }
      const float offset = most * tiles.scale;
      float sum = sums[half] * FastExp2((largest[half] - most) * tiles.scale);
#pragma unroll
      for (int n = 0; n < kPlaceTiles; ++n) {
        sum += FastExp2(fmaf(scores[n][half * 2], tiles.scale, -offset)) +
               FastExp2(fmaf(scores[n][half * 2 + 1], tiles.scale, -offset));
      }
      largest[half] = most;
      sums[half] = sum;
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      const float other = __shfl_xor_sync(~0u, largest[half], distance);
      const float other_sum = __shfl_xor_sync(~0u, sums[half], distance);
      const float most = fmaxf(largest[half], other);
      sums[half] = sums[half] * FastExp2((largest[half] - most) * tiles.scale) +
                   other_sum * FastExp2((other - most) * tiles.scale);
      largest[half] = most;
    }
    if (threadIdx.x % 4 != 0) continue;
    tiles.partials[tiles.PartialAt(blockIdx.z, PackedRow(half))] = {largest[half], sums[half]};
  }
}

// log2 of a packed row's normaliser; infinity for one that is nobody's, so that its shares are 0.
__device__ float NormaliserOf(const TeacherTiles& tiles, int packed, int end) {
  const int head = packed & ((1 << tiles.group_bits) - 1);
  if (end == 0 || head >= tiles.heads) return INFINITY;
  const int shares = (end + tiles.share - 1) / tiles.share;
  float most = kNoScore, sum = 0.0f;
  for (int s = 0; s < shares; ++s) most = fmaxf(most, tiles.partials[tiles.PartialAt(s, packed)].x);
  for (int s = 0; s < shares; ++s) {
    const float2 partial = tiles.partials[tiles.PartialAt(s, packed)];
    sum += partial.y * exp2f((partial.x - most) * tiles.scale);
  }
  return most * tiles.scale + log2f(sum);
}

// values[n] of the 2^kBits lanes of a token are added up, and each lane keeps a share of the sums:
// values[n] for n < 16 >> kBits become those of tile KeptTile<kBits>() + n. Halves change hands.
template <int kBits>
__device__ __forceinline__ void SumOverLanes(float (&values)[kPlaceTiles][2]) {
  if constexpr (kBits > 0) {
    constexpr int kDistance = 2 << kBits;  // of the lane's highest bit among the token's
#pragma unroll
    for (int step = 0; step < kBits; ++step) {
      const int distance = kDistance >> step, kept = kPlaceTiles >> (step + 1);
      const bool is_high = (threadIdx.x & distance) != 0;
#pragma unroll
      for (int n = 0; n < kPlaceTiles / 2; ++n) {
        if (n >= kept) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float own = is_high ? values[n + kept][i] : values[n][i];
          const float other = is_high ? values[n][i] : values[n + kept][i];
          values[n][i] = own + __shfl_xor_sync(~0u, other, distance);
        }
      }
    }
  }
}

template <int kBits>
__device__ inline int KeptTile() {
  const int lane_of_token = threadIdx.x % 32 / 4 & ((1 << kBits) - 1);
  return lane_of_token << (4 - kBits);
}

// Sums probabilities over the 2^kGroupBits packed rows of each token and writes them to T; behind a
// row's end they are 0.
template <int kGroupBits>
__device__ __forceinline__ void StoreSums(const TeacherTiles& tiles, int place, const Scores& p) {
  constexpr int kBits = kGroupBits < 3 ? kGroupBits : 3;
#pragma unroll
  for (int half = 0; half < (kGroupBits == 4 ? 1 : 2); ++half) {
    float values[kPlaceTiles][2];
#pragma unroll
    for (int n = 0; n < kPlaceTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        values[n][i] = p[n][half * 2 + i];
        if constexpr (kGroupBits == 4) values[n][i] += p[n][2 + i];
      }
    }
    SumOverLanes<kBits>(values);
    const int row = tiles.RowOf(PackedRow(half));
    if (row >= tiles.rows) continue;
    float* const to = tiles.sums +
                      (int64_t{row} * tiles.num_kv_heads + blockIdx.y) * tiles.place_stride +
                      place + KeptTile<kBits>() * 8 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < kPlaceTiles >> kBits; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) = {values[n][0], values[n][1]};
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) SumSharesKernel(TeacherTiles tiles) {
  WaitForPrevious();
  const TileEnds ends = EndsOf(tiles);
  if (ends.first >= ends.end) return;
  Queries<kDim> q;
  LoadQueryRows<kDim>(tiles, q);
  const float normalisers[2] = {NormaliserOf(tiles, PackedRow(0), ends.own[0]),
                                NormaliserOf(tiles, PackedRow(1), ends.own[1])};
  PlaceWalk<kDim>::Run(tiles, q, ends, [&](int place, Scores& scores) {
    Mask(ends, place, scores);
#pragma unroll
    for (int n = 0; n < kPlaceTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = FastExp2(fmaf(scores[n][i], tiles.scale, -normalisers[i / 2]));
      }
    }
    switch (tiles.group_bits) {
      case 0:
        return StoreSums<0>(tiles, place, scores);
      case 1:
        return StoreSums<1>(tiles, place, scores);
      case 2:
        return StoreSums<2>(tiles, place, scores);
      case 3:
        return StoreSums<3>(tiles, place, scores);
      default:
        return StoreSums<4>(tiles, place, scores);
    }
  });
}

constexpr int kGatherThreads = 256;

// A CTA a (row, kv head): T to windows, divided by their sum.
__global__ void __launch_bounds__(kGatherThreads)
    GatherWindowsKernel(ForecastTeacherParams params, TeacherTiles tiles) {
  WaitForPrevious();
  __shared__ float totals[kGatherThreads];
  const int64_t item = int64_t{blockIdx.x} * params.num_kv_heads + blockIdx.y;
  const float* const sums = tiles.sums + item * tiles.place_stride;
  float* const windows = params.windows + item * params.window_stride;
  const int position = params.positions[blockIdx.x];
  const int count = CompleteWindows(position);
  // The usual way, by whole runs of 16 places: all of a complete window's are before the row's end.
  const bool is_released =
      params.is_fine && params.alignment.before == 1 && params.alignment.tokens == 17;
  float total = 0.0f;
  for (int j = threadIdx.x; j < count; j += kGatherThreads) {
    float largest = 0.0f;
    if (is_released) {
      const auto* const run = reinterpret_cast<const float4*>(sums + kWindowStride * j);
      if (j > 0) largest = sums[kWindowStride * j - 1];
#pragma unroll
      for (int i = 0; i < kWindowStride / 4; ++i) {
        const float4 four = run[i];
        largest = fmaxf(largest, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
      }
    } else if (params.is_fine) {
      const int begin = kWindowStride * j - params.alignment.before;
      const int end = min(begin + params.alignment.tokens, position);
      for (int t = max(begin, 0); t < end; ++t) largest = fmaxf(largest, sums[t]);
    } else {
      largest = sums[j];
    }
    windows[j] = largest;
    total += largest;
  }
  totals[threadIdx.x] = total;
  for (int distance = kGatherThreads / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (threadIdx.x < distance) totals[threadIdx.x] += totals[threadIdx.x + distance];
  }
  __syncthreads();
  const float share = totals[0] > 0.0f ? 1.0f / totals[0] : 0.0f;
  for (int j = threadIdx.x; j < count; j += kGatherThreads) windows[j] *= share;
}

template <int kDim>
void RunTiles(const TeacherTiles& tiles, const LaunchShape& grid, cudaStream_t stream) {
  constexpr int kBytes = PlaceWalk<kDim>::kBytes;
  const LaunchShape shape{grid.grid, dim3(kThreads), kBytes};
  for (const auto kernel : {NormaliseKernel<kDim>, SumSharesKernel<kDim>}) {
    AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    LaunchKernel(stream, shape, kernel, tiles);
  }
}

TeacherTiles TilesOf(const ForecastTeacherParams& params, int64_t place_stride) {
  const int64_t items = int64_t{params.rows} * params.num_kv_heads;
  return {.q = static_cast<const Element*>(params.q),
          .positions = params.positions,
          .keys = static_cast<const Element*>(params.keys) + (params.is_fine ? 0 : params.head_dim),
          .sums = params.scratch,
          .partials = reinterpret_cast<float2*>(params.scratch + items * place_stride),
          .key_stride = params.key_stride,
          .place_stride = place_stride,
          .rows = params.rows,
          .q_stride = params.q_stride,
          .num_kv_heads = params.num_kv_heads,
          .heads = params.heads_per_group,
          .group_bits =
              static_cast<int>(std::bit_width(static_cast<unsigned>(params.heads_per_group - 1))),
          .head_dim = params.head_dim,
          .scale = params.scale * kLog2E,
          .is_fine = params.is_fine};
}

}  // namespace

void CudaTrainingOps::ForecastTeacher(const ForecastTeacherParams& params) {
  AUGUR_CHECK(params.dtype == DType::kBF16 && params.rows >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.heads_per_group > 0 && params.heads_per_group <= 16);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim <= 128 && params.head_dim % 8 == 0);
  AUGUR_CHECK(params.q_stride % 2 == 0 && params.key_stride % 8 == 0);
  AUGUR_CHECK(IsAligned(params.q, 4) && IsAligned(params.keys, 16) && IsAligned(params.scratch, 8));
  if (params.rows == 0) return;
  const int places = params.is_fine ? params.last_position : CompleteWindows(params.last_position);
  AUGUR_CHECK(params.scratch_floats >=
              TeacherScratchFloats(params.rows, params.num_kv_heads, places));
  const int64_t place_stride = (int64_t{places} + kPlaces - 1) / kPlaces * kPlaces;
  TeacherTiles tiles = TilesOf(params, place_stride);
  const int shares = std::clamp(places / kLeastShare, 1, kTeacherShares);
  const int tiles_of_share = static_cast<int>((place_stride / kPlaces + shares - 1) / shares);
  tiles.share = tiles_of_share * kPlaces;
  const int row_tiles = (params.rows + tiles.tokens() - 1) / tiles.tokens();
  const LaunchShape grid{dim3(row_tiles, params.num_kv_heads, shares), dim3(kThreads)};
  params.head_dim <= 64 ? RunTiles<64>(tiles, grid, stream_) : RunTiles<128>(tiles, grid, stream_);
  LaunchKernel(stream_, {dim3(params.rows, params.num_kv_heads), dim3(kGatherThreads)},
               GatherWindowsKernel, params, tiles);
}

}  // namespace augur::kernels
