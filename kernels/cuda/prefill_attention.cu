// Head dims 64 and 128 go to wgmma_prefill_attention.cu, or with choices to
// sparse_prefill_attention.cu, 96 to the kernel here: its rows do not divide into the 128 bytes
// that warpgroup products swizzle over.
//
// One CTA takes a tile of packed rows (prefill_tiles.h) of one kv head through the pages from block
// 0 to the tile's last one. Each warp has 32 rows: two fragments of 16, which share every K and V
// fragment that the warp loads, or shared memory could not feed the tensor cores.
//
//   scores = q K^T           tensor cores; q rounded to the page's type
//   m' = max(m, scores * c)  c = scale log2 e; m in units of powers of two
//   p = 2^(scores * c - m')  keys behind the row's position: score -infinity, so p = 0
//   sum = sum * 2^(m - m') + p
//   out = out * 2^(m - m') + p V   tensor cores; p rounded to the page's type
//
// one such update a page, whatever the tile. Pages behind a row's position change nothing: m' = m,
// the factor is 1 and all p are 0. So a row's bits do not depend on the rows beside it.
//
// 0 times NaN or infinity is NaN: in pages that some row of the tile does not see in whole,
// elements of V that are not finite become 0 (in shared memory) and the first such key of each
// column is kept. At the end a row that saw it gets NaN there. Infinite results become NaN too,
// since a tile that sees the whole page multiplies infinity itself: V with infinities gives NaN in
// every tile.
#include <climits>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/prefill_tiles.h"
#include "kernels/cuda/sparse_prefill_attention.h"
#include "kernels/cuda/wgmma_prefill_attention.h"

namespace augur::kernels {
namespace {

constexpr int kMaxGroup = 16;

// 32 rows a warp take 96 + 64 registers of accumulators a thread. 4 warps, so that two CTAs share
// an SM (72 KiB of shared memory each): one computes while the other waits.
constexpr int kWarpRows = 32;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileRows = kWarpRows * kWarps;
constexpr int kCtasPerSm = 2;
constexpr int kFragments = kWarpRows / kFragmentRows;
constexpr int kKeyTiles = kBlockTokens / 8;   // columns of C fragments of a page's scores
constexpr int kKeySteps = kBlockTokens / 16;  // steps of the sum over a page's keys
constexpr int kStages = 2;  // the next page's copy runs beside this page's computation

template <int kHeadDim>
struct SharedTile {
  static constexpr int kRowBytes = SwizzledRows<kHeadDim>::kRowBytes;
  static constexpr int kHalfPageBytes = kBlockTokens * kRowBytes;  // K or V
  static constexpr int kPageBytes = 2 * kHalfPageBytes;
  static constexpr int kQueryBytes = kTileRows * kRowBytes;
  static constexpr int kFirstBadOffset = kQueryBytes + kStages * kPageBytes;
  static constexpr int kTileOffset = kFirstBadOffset + kHeadDim * static_cast<int>(sizeof(int));
  static constexpr int kAddressOffset = kTileOffset + static_cast<int>(sizeof(TileRows));
  static constexpr int kBytes = kAddressOffset + 2 * static_cast<int>(sizeof(const std::byte*));
  static_assert(kAddressOffset % sizeof(const std::byte*) == 0);
};

// Rows [begin, end) of the span. Empty where the tile ends before.
__device__ PrefillSpan WarpSpan(const PrefillSpan& tile, int warp) {
  PrefillSpan span = tile;
  span.begin = min(tile.begin + warp * kWarpRows, tile.end);
  span.end = min(span.begin + kWarpRows, tile.end);
  return span;
}

template <class T>
__device__ uint4 LoadChunkAs(const float* from, bool aligned) {
  float x[8];
  if (aligned) {
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(from + 4);
  } else {
    for (int i = 0; i < 8; ++i) x[i] = from[i];
  }
  return {PackPair<T>(x[0], x[1]), PackPair<T>(x[2], x[3]), PackPair<T>(x[4], x[5]),
          PackPair<T>(x[6], x[7])};
}

// The tile's queries, rounded to T; rows behind its end are 0.
template <class T, int kHeadDim>
__device__ void LoadQueries(const PagedAttentionParams& params, const TileRows& rows,
                            std::byte* queries) {
  using Layout = SwizzledRows<kHeadDim>;
  const bool aligned =
      params.q_stride % 4 == 0 && reinterpret_cast<uintptr_t>(params.q) % sizeof(float4) == 0;
  for (int i = threadIdx.x; i < kTileRows * Layout::kChunks; i += kThreads) {
    const int row = i / Layout::kChunks, chunk = i % Layout::kChunks;
    const int packed = rows.span.begin + row;
    uint4 values{0, 0, 0, 0};
    if (packed < rows.span.end) {
      const int64_t token = rows.first_row + packed / rows.span.group;
      const int head = rows.first_head + packed % rows.span.group;
      values =
          LoadChunkAs<T>(params.q + token * params.q_stride + head * kHeadDim + chunk * 8, aligned);
    }
    *reinterpret_cast<uint4*>(queries + Layout::OffsetOf(row, chunk)) = values;
  }
}

// Calls body(i, offset in shared memory) for this thread's chunks of kNumRows rows: chunk
// threadIdx.x + i * kThreads in the order of global memory. A thread's chunks of a page's V are the
// same ones, whether taken of V or of the whole page.
template <int kHeadDim, int kNumRows, class Body>
__device__ __forceinline__ void ForOwnChunks(Body&& body) {
  using Layout = SwizzledRows<kHeadDim>;
  constexpr int kChunks = Layout::kChunks;
  constexpr int kItems = kNumRows * kChunks / kThreads;
  static_assert(kBlockTokens * kChunks % kThreads == 0 && kNumRows % kBlockTokens == 0);
  const int thread = threadIdx.x;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int item = thread + i * kThreads;
    body(i, Layout::OffsetOf(item / kChunks, item % kChunks));
  }
}

// Starts this thread's share of a page's copy: K's 64 rows, then V's.
template <int kHeadDim>
__device__ __forceinline__ void CopyPage(const std::byte* page, uint32_t to_shared) {
  const std::byte* const from = page + threadIdx.x * 16;
  ForOwnChunks<kHeadDim, 2 * kBlockTokens>(
      [&](int i, int offset) { CopyChunk(to_shared + offset, from + i * kThreads * 16); });
}

// Makes the elements that are not finite 0, in those chunks of V that this thread copied itself,
// after the copy and before the others see it.
template <class T, int kHeadDim>
__device__ __forceinline__ void CleanValues(std::byte* values, int first_key, int* first_bad) {
  uint32_t any = 0;
  ForOwnChunks<kHeadDim, kBlockTokens>([&](int, int offset) {
    any |= NonFiniteBits<T>(*reinterpret_cast<const uint4*>(values + offset));
  });
  if (any == 0) return;
  constexpr int kChunks = SwizzledRows<kHeadDim>::kChunks;
#pragma unroll 1
  for (int item = threadIdx.x; item < kBlockTokens * kChunks; item += kThreads) {
    const int row = item / kChunks, chunk = item % kChunks;
    uint32_t* const pairs =
        reinterpret_cast<uint32_t*>(values + SwizzledRows<kHeadDim>::OffsetOf(row, chunk));
    CleanChunk<T>(pairs, first_key + row, chunk, first_bad);
  }
}

template <int kHeadDim>
using WarpRows = FragmentRows<kHeadDim>[kFragments];
using Scores = FragmentScores<kBlockTokens>[kFragments];
using Weights = FragmentWeights<kBlockTokens>[kFragments];

template <class T, int kHeadDim>
__device__ __forceinline__ void ScorePage(uint32_t queries, uint32_t keys, Scores& scores) {
  using Layout = SwizzledRows<kHeadDim>;
  const int lane = threadIdx.x % 32;
  // A: matrices are rows 0-7 and 8-15 of one chunk, then of the next one.
  uint32_t q_at = queries + Layout::OffsetOf(threadIdx.x / 32 * kWarpRows + lane % 16, lane / 16);
  // Else the addresses of all steps are worked out before the first page, and take registers.
  asm volatile("" : "+r"(q_at));
  // B of two key tiles: chunks 0 and 1 of keys 0-7, then of keys 8-15.
  const uint32_t k_at = keys + Layout::OffsetOf(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[f][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    uint32_t q[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      LoadMatrices(q[f], Layout::Advance(q_at, step * 2) + f * kFragmentRows * Layout::kRowBytes);
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      uint32_t k[4];
      LoadMatrices(k, Layout::Advance(k_at, step * 2) + n * 8 * Layout::kRowBytes);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        MultiplyAdd<T>(scores[f][n], q[f], k[0], k[1]);
        MultiplyAdd<T>(scores[f][n + 1], q[f], k[2], k[3]);
      }
    }
  }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void GatherPage(uint32_t values, const Weights& weights,
                                           WarpRows<kHeadDim>& rows) {
  using Layout = SwizzledRows<kHeadDim>;
  const int lane = threadIdx.x % 32;
  // B of two column tiles: keys 0-7 and 8-15 of one chunk, then of the next one.
  const uint32_t v_at = values + Layout::OffsetOf(lane % 16, lane / 16);
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      uint32_t v[4];
      LoadMatricesTransposed(v, Layout::Advance(v_at, n) + step * 16 * Layout::kRowBytes);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        MultiplyAdd<T>(rows[f].out[n], weights[f][step], v[0], v[1]);
        MultiplyAdd<T>(rows[f].out[n + 1], weights[f][step], v[2], v[3]);
      }
    }
  }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void AttendPage(uint32_t queries, uint32_t page_at, int page,
                                           const PrefillSpan& tile, bool is_masked, float scale,
                                           WarpRows<kHeadDim>& rows) {
  Scores scores;
  ScorePage<T, kHeadDim>(queries, page_at, scores);
  if (is_masked) {
    const int begin = tile.begin + threadIdx.x / 32 * kWarpRows;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      MaskFragment(tile, begin + f * kFragmentRows, page * kBlockTokens, scores[f]);
    }
  }
  Weights weights;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    float factor[2];
    factor[0] = WeighRow(scores[f], 0, scale, rows[f].max[0], rows[f].sum[0]);
    factor[1] = WeighRow(scores[f], 1, scale, rows[f].max[1], rows[f].sum[1]);
    ScaleFragment(factor, rows[f]);
    PackWeights<T>(scores[f], weights[f]);
  }
  GatherPage<T, kHeadDim>(page_at + SharedTile<kHeadDim>::kHalfPageBytes, weights, rows);
}

// Starts the copy of a page's address, to be read a page later: a load into a register would be
// waited for, or held over the computation at the cost of a register pair that is not there.
template <int kHeadDim>
__device__ __forceinline__ void CopyAddressOf(const TileRows& tile, int page, std::byte* shared) {
  if (threadIdx.x != 0 || page >= tile.num_pages) return;
  std::byte* const to = shared + SharedTile<kHeadDim>::kAddressOffset + page % 2 * 8;
  CopyAddress(SharedAddress(to), tile.pages + page);
}

// The tile's pages, one after the other. The copies of page 0 and of page 1's address are under
// way.
template <class T, int kHeadDim>
__device__ __forceinline__ void AttendTile(const TileRows& tile, float scale, std::byte* shared,
                                           WarpRows<kHeadDim>& rows) {
  using Shared = SharedTile<kHeadDim>;
  std::byte* const stages = shared + Shared::kQueryBytes;
  int* const first_bad = reinterpret_cast<int*>(shared + Shared::kFirstBadOffset);
  const std::byte* const* const addresses =
      reinterpret_cast<const std::byte* const*>(shared + Shared::kAddressOffset);
  const int own_pages = WarpSpan(tile.span, threadIdx.x / 32).NumPages();
  for (int page = 0; page < tile.num_pages; ++page) {
    std::byte* const here = stages + page % kStages * Shared::kPageBytes;
    WaitForCopies();
    if (page >= tile.first_masked_page) {
      CleanValues<T, kHeadDim>(here + Shared::kHalfPageBytes, page * kBlockTokens, first_bad);
    }
    // Everyone's copies of this page are there, and everyone has left the page before it, whose
    // place the next one takes.
    __syncthreads();
    if (page + 1 < tile.num_pages) {
      CopyPage<kHeadDim>(addresses[(page + 1) % 2],
                         SharedAddress(stages + (page + 1) % kStages * Shared::kPageBytes));
      CopyAddressOf<kHeadDim>(tile, page + 2, shared);
    }
    if (page < own_pages) {
      AttendPage<T, kHeadDim>(SharedAddress(shared), SharedAddress(here), page, tile.span,
                              page >= tile.first_masked_page, scale, rows);
    }
  }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    PrefillAttentionKernel(PagedAttentionParams params) {
  WaitForPrevious();
  using Shared = SharedTile<kHeadDim>;
  extern __shared__ __align__(128) std::byte shared[];
  // Heads of a tile run side by side; the last tiles of a segment, the longest ones, come first.
  const int kv_head = blockIdx.x % params.num_kv_heads;
  const int num_tiles = gridDim.x / params.num_kv_heads;
  const Tile tile = FindTile(params, kTileRows, num_tiles - 1 - blockIdx.x / params.num_kv_heads);
  if (tile.segment < 0) return;
  TileRows& tile_rows = *reinterpret_cast<TileRows*>(shared + Shared::kTileOffset);
  if (threadIdx.x == 0) tile_rows = RowsOf(params, kTileRows, tile, kv_head);
  int* const first_bad = reinterpret_cast<int*>(shared + Shared::kFirstBadOffset);
  for (int i = threadIdx.x; i < kHeadDim; i += kThreads) first_bad[i] = INT_MAX;
  __syncthreads();
  CopyPage<kHeadDim>(tile_rows.pages[0], SharedAddress(shared + Shared::kQueryBytes));
  CopyAddressOf<kHeadDim>(tile_rows, 1, shared);
  LoadQueries<T, kHeadDim>(params, tile_rows, shared);

  WarpRows<kHeadDim> rows;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) Clear(rows[f]);
  AttendTile<T, kHeadDim>(tile_rows, params.scale * kLog2E, shared, rows);
  const int begin = tile_rows.span.begin + threadIdx.x / 32 * kWarpRows;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    WriteFragment(params, tile_rows, begin + f * kFragmentRows, FirstBadKeys{first_bad}, rows[f]);
  }
}

template <class T, int kHeadDim>
void Launch(const PagedAttentionParams& params, cudaStream_t stream) {
  const auto kernel = PrefillAttentionKernel<T, kHeadDim>;
  constexpr int kBytes = SharedTile<kHeadDim>::kBytes;
  AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int group = params.num_q_heads / params.num_kv_heads;
  const int tiles = MaxPrefillTiles(params.rows, group, params.num_segments, kTileRows);
  const LaunchShape shape{
      .grid = dim3(tiles * params.num_kv_heads), .block = dim3(kThreads), .shared_bytes = kBytes};
  LaunchKernel(stream, shape, kernel, params);
}

}  // namespace

PrefillAttention::PrefillAttention(int num_sms) : num_sms_(num_sms) {
  AUGUR_CHECK(num_sms > 0);
  AUGUR_CUDA(cudaMalloc(reinterpret_cast<void**>(&turns_), sizeof(*turns_)));
  AUGUR_CUDA(cudaMemset(turns_, 0, sizeof(*turns_)));
  AUGUR_CUDA(cudaStreamSynchronize(nullptr));  // other streams do not wait for it
}

PrefillAttention::~PrefillAttention() { cudaFree(turns_); }

bool PrefillAttention::Serves(const PagedAttentionParams& params) {
  const bool is_16_bit = params.dtype == DType::kBF16 || params.dtype == DType::kF16;
  const bool has_head_dim = params.head_dim == 64 || params.head_dim == 128 ||
                            (params.head_dim == 96 && !params.has_choices);
  const bool has_group = params.num_kv_heads > 0 && params.num_q_heads > 0 &&
                         params.num_q_heads % params.num_kv_heads == 0 &&
                         params.num_q_heads / params.num_kv_heads <= kMaxGroup;
  const bool is_whole =
      params.first_entry == 0 && params.end_entry == INT_MAX && params.states == nullptr;
  return is_16_bit && has_head_dim && has_group && is_whole && params.scale > 0.0f;
}

void PrefillAttention::Run(const PagedAttentionParams& params, cudaStream_t stream) {
  AUGUR_CHECK(Serves(params));
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim);
  AUGUR_CHECK(params.rows >= 0 && params.num_segments >= 0);
  if (params.rows == 0 || params.num_segments == 0) return;
  if (params.has_choices) return RunSparsePrefillAttention(params, num_sms_, turns_, stream);
  if (params.head_dim != 96) {
    return RunWgmmaPrefillAttention(params, num_sms_, turns_, stream);
  }
  if (params.dtype == DType::kBF16) {
    Launch<__nv_bfloat16, 96>(params, stream);
  } else {
    Launch<__half, 96>(params, stream);
  }
}

}  // namespace augur::kernels
