// The teacher of Forecast training in three launches: the normaliser of every query head (a maximum
// and a sum of exponentials, for each share of the places), the heads' probabilities summed over
// the group, and their gathering to windows.
//
// A tile is 64 places times 128 packed rows: the heads of a kv head's group, token after token, the
// group filled up to a power of two. Products are K q^T (places are a fragment's rows), so that a
// lane's columns are a token's heads and the sum over the group takes two shuffles at most.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/forecast_teacher.h"

namespace augur::kernels {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 128;  // four warps, 32 packed rows each
constexpr int kPackedRows = 128;
constexpr int kPlaces = 64;
constexpr int kStages = 3;
constexpr int kLeastShare = 1024;  // places of a share
constexpr int kColumns = 8;        // packed rows that a lane has sums of
constexpr float kNoScore = -1e30f;
constexpr float kLog2E = 1.44269504f;

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
  int share = 0;       // places, a multiple of kPlaces
  float scale = 0;     // of powers of two
  bool is_fine = false;

  __host__ __device__ int tokens() const { return kPackedRows >> group_bits; }  // of a tile
  __device__ int EndAt(int row) const {
    if (row >= rows) return 0;
    return is_fine ? positions[row] : CompleteWindows(positions[row]);
  }
  __device__ int64_t PartialAt(int share_id, int packed) const {
    return (int64_t{share_id} * num_kv_heads + blockIdx.y) * gridDim.x * kPackedRows +
           blockIdx.x * kPackedRows + packed;
  }
};

// A tile's q as B fragments: [columns of eight packed rows][steps of 16 elements].
template <int kDim>
using QueryFragments = uint32_t[4][kDim / 16][2];

template <int kDim>
__device__ void LoadQueries(const TeacherTiles& tiles, QueryFragments<kDim>& q) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int packed = threadIdx.x / 32 * 32 + n * 8 + lane / 4;
    const int row = blockIdx.x * tiles.tokens() + (packed >> tiles.group_bits);
    const int head = packed & ((1 << tiles.group_bits) - 1);
    const bool is_there = row < tiles.rows && head < tiles.heads;
    const Element* from = tiles.q + int64_t{row} * tiles.q_stride +
                          (blockIdx.y * tiles.heads + head) * kDim + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        q[n][step][i] =
            is_there ? *reinterpret_cast<const uint32_t*>(from + step * 16 + i * 8) : 0u;
      }
    }
  }
}

// Walks the CTA's share of the places: body(first place, scores as they leave the tensor cores).
template <int kDim>
struct PlaceWalk {
  static constexpr int kStride = kDim + 8;  // of shared memory: rows in different banks
  static constexpr size_t kSharedBytes = size_t{kStages} * kPlaces * kStride * sizeof(Element);

  // Keys from `end` on are 0.
  static __device__ void Load(const TeacherTiles& tiles, int first, int end, Element* tile) {
    constexpr int kAcross = kDim / 8;
    const Element* const keys = tiles.keys + blockIdx.y * tiles.key_stride;
#pragma unroll
    for (int n = 0; n < kPlaces * kAcross / kThreads; ++n) {
      const int chunk = n * kThreads + threadIdx.x;
      const int row = chunk / kAcross, column = chunk % kAcross * 8;
      const int place = min(first + row, end - 1);
      const int bytes = first + row < end ? 16 : 0;
      asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                       SharedAddress(tile + row * kStride + column)),
                   "l"(keys + int64_t{place} * kDim + column), "r"(bytes)
                   : "memory");
    }
  }

  static __device__ void Multiply(const Element* tile, const QueryFragments<kDim>& q,
                                  float (&scores)[4][4][4]) {
    const int lane = threadIdx.x % 32;
    const Element* const own = tile + (lane % 8 + lane / 8 % 2 * 8) * kStride + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t keys[4];
        LoadMatrices(keys, SharedAddress(own + m * 16 * kStride + step * 16));
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          MultiplyAdd<Element>(scores[m][n], keys, q[n][step][0], q[n][step][1]);
        }
      }
    }
  }

  template <class Body>
  static __device__ void Run(const TeacherTiles& tiles, const QueryFragments<kDim>& q, int first,
                             int end, const Body& body) {
    extern __shared__ __align__(16) unsigned char shared[];
    auto* const ring = reinterpret_cast<Element*>(shared);
    const int steps = (end - first + kPlaces - 1) / kPlaces;
    const auto load = [&](int step) {
      if (step < steps) {
        Load(tiles, first + step * kPlaces, end, ring + step % kStages * kPlaces * kStride);
      }
      CommitCopies();
    };
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int step = 0; step < steps; ++step) {
      WaitForCopyGroups<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1);
      float scores[4][4][4] = {};
      Multiply(ring + step % kStages * kPlaces * kStride, q, scores);
      body(first + step * kPlaces, scores);
    }
  }
};

// The CTA's ends by packed row, and its places [first, end).
struct TileEnds {
  const int* of_packed;  // [kPackedRows] in shared memory
  int first, end;
  int least;  // of all tokens

  // Columns n, i of a lane.
  __device__ int Of(int n, int i) const {
    return of_packed[threadIdx.x / 32 * 32 + n * 8 + threadIdx.x % 4 * 2 + i];
  }
};

__device__ TileEnds EndsOf(const TeacherTiles& tiles, int* of_packed) {
  const int first_row = blockIdx.x * tiles.tokens();
  of_packed[threadIdx.x] = tiles.EndAt(first_row + (threadIdx.x >> tiles.group_bits));
  __syncthreads();
  TileEnds ends;
  ends.of_packed = of_packed;
  ends.first = blockIdx.z * tiles.share;
  const int last_row = min(first_row + tiles.tokens(), tiles.rows) - 1;
  ends.end = min(tiles.EndAt(last_row), ends.first + tiles.share);
  ends.least = tiles.EndAt(first_row + tiles.tokens() - 1) == 0 ? 0 : of_packed[0];
  return ends;
}

// Scores at and behind a row's end become minus infinity.
__device__ void Mask(const TileEnds& ends, int place, float (&scores)[4][4][4]) {
  if (place + kPlaces <= ends.least) return;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int left = ends.Of(n, i) - place - static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        if (m * 16 >= left) scores[m][n][i] = -INFINITY;
        if (m * 16 + 8 >= left) scores[m][n][2 + i] = -INFINITY;
      }
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) NormaliseKernel(TeacherTiles tiles) {
  WaitForPrevious();
  __shared__ int of_packed[kPackedRows];
  const TileEnds ends = EndsOf(tiles, of_packed);
  if (ends.first >= ends.end) return;
  QueryFragments<kDim> q;
  LoadQueries<kDim>(tiles, q);
  float largest[kColumns], sums[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    largest[c] = kNoScore;
    sums[c] = 0.0f;
  }
  PlaceWalk<kDim>::Run(tiles, q, ends.first, ends.end, [&](int place, float(&scores)[4][4][4]) {
    Mask(ends, place, scores);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int n = c / 2, i = c % 2;
      float most = largest[c];
#pragma unroll
      for (int m = 0; m < 4; ++m) most = fmaxf(most, fmaxf(scores[m][n][i], scores[m][n][2 + i]));
      const float offset = most * tiles.scale;
      float sum = sums[c] * FastExp2((largest[c] - most) * tiles.scale);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        sum += FastExp2(fmaf(scores[m][n][i], tiles.scale, -offset)) +
               FastExp2(fmaf(scores[m][n][2 + i], tiles.scale, -offset));
      }
      largest[c] = most;
      sums[c] = sum;
    }
  });
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      const float other = __shfl_xor_sync(~0u, largest[c], distance);
      const float other_sum = __shfl_xor_sync(~0u, sums[c], distance);
      const float most = fmaxf(largest[c], other);
      sums[c] = sums[c] * FastExp2((largest[c] - most) * tiles.scale) +
                other_sum * FastExp2((other - most) * tiles.scale);
      largest[c] = most;
    }
    if (threadIdx.x % 32 >= 4) continue;
    const int packed = threadIdx.x / 32 * 32 + c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2;
    tiles.partials[tiles.PartialAt(blockIdx.z, packed)] = {largest[c], sums[c]};
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

// Sums probabilities over the 2^kBits columns of each token and writes them to T.
template <int kBits>
__device__ void StoreSums(const TeacherTiles& tiles, const TileEnds& ends, int place,
                          const float (&p)[4][4][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_row = threadIdx.x / 32 * 32;
  const auto store = [&](int packed, int m, int half, float value) {
    const int row = blockIdx.x * tiles.tokens() + (packed >> kBits);
    const int at = place + m * 16 + half * 8 + g;
    if (at >= ends.of_packed[packed]) return;
    tiles.sums[(int64_t{row} * tiles.num_kv_heads + blockIdx.y) * tiles.place_stride + at] = value;
  };
#pragma unroll
  for (int n = 0; n < 4; n += kBits == 4 ? 2 : 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sums[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        if constexpr (kBits == 0) {
          store(warp_row + n * 8 + t * 2, m, half, p[m][n][half * 2]);
          store(warp_row + n * 8 + t * 2 + 1, m, half, p[m][n][half * 2 + 1]);
        }
        sums[m] = p[m][n][half * 2] + p[m][n][half * 2 + 1];
        if constexpr (kBits == 4) sums[m] += p[m][n + 1][half * 2] + p[m][n + 1][half * 2 + 1];
        if constexpr (kBits >= 2) sums[m] += __shfl_xor_sync(~0u, sums[m], 1);
        if constexpr (kBits >= 3) sums[m] += __shfl_xor_sync(~0u, sums[m], 2);
      }
      // The lanes of a token share its stores.
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        if constexpr (kBits == 1) store(warp_row + n * 8 + t * 2, m, half, sums[m]);
        if constexpr (kBits == 2) {
          if (m % 2 == t % 2) store(warp_row + n * 8 + t / 2 * 4, m, half, sums[m]);
        }
        if constexpr (kBits >= 3) {
          if (m == t) store(warp_row + n * 8, m, half, sums[m]);
        }
      }
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) SumSharesKernel(TeacherTiles tiles) {
  WaitForPrevious();
  __shared__ int of_packed[kPackedRows];
  const TileEnds ends = EndsOf(tiles, of_packed);
  if (ends.first >= ends.end) return;
  QueryFragments<kDim> q;
  LoadQueries<kDim>(tiles, q);
  float normalisers[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int packed = threadIdx.x / 32 * 32 + c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2;
    normalisers[c] = NormaliserOf(tiles, packed, of_packed[packed]);
  }
  PlaceWalk<kDim>::Run(tiles, q, ends.first, ends.end, [&](int place, float(&scores)[4][4][4]) {
    Mask(ends, place, scores);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[m][n][i] =
              FastExp2(fmaf(scores[m][n][i], tiles.scale, -normalisers[2 * n + i % 2]));
        }
      }
    }
    switch (tiles.group_bits) {
      case 0:
        return StoreSums<0>(tiles, ends, place, scores);
      case 1:
        return StoreSums<1>(tiles, ends, place, scores);
      case 2:
        return StoreSums<2>(tiles, ends, place, scores);
      case 3:
        return StoreSums<3>(tiles, ends, place, scores);
      default:
        return StoreSums<4>(tiles, ends, place, scores);
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
  float total = 0.0f;
  for (int j = threadIdx.x; j < count; j += kGatherThreads) {
    float largest = 0.0f;
    if (params.is_fine) {
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
  constexpr size_t kBytes = PlaceWalk<kDim>::kSharedBytes;
  const LaunchShape shape{grid.grid, dim3(kThreads), kBytes};
  for (const auto kernel : {NormaliseKernel<kDim>, SumSharesKernel<kDim>}) {
    AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(kBytes)));
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
          .scale = params.scale * kLog2E,
          .is_fine = params.is_fine};
}

}  // namespace

void CudaTrainingOps::ForecastTeacher(const ForecastTeacherParams& params) {
  AUGUR_CHECK(params.dtype == DType::kBF16 && params.rows >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.heads_per_group > 0 && params.heads_per_group <= 16);
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
  switch (params.head_dim) {
    case 64:
      RunTiles<64>(tiles, grid, stream_);
      break;
    case 96:
      RunTiles<96>(tiles, grid, stream_);
      break;
    case 128:
      RunTiles<128>(tiles, grid, stream_);
      break;
    default:
      AUGUR_CHECK(!"a head_dim of 64, 96 or 128");
  }
  LaunchKernel(stream_, {dim3(params.rows, params.num_kv_heads), dim3(kGatherThreads)},
               GatherWindowsKernel, params, tiles);
}

}  // namespace augur::kernels
