// The arithmetic is that of prefill_attention.cu. Two or three warpgroups of a CTA have 64 rows
// each; their queries and p are fragments in registers, K and V operands in shared memory. One more
// warpgroup copies pages ahead of them. Scores of a page are under way together with the values of
// the page before it, and while they run the warpgroup works on its softmax.
#include <climits>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/prefill_tiles.h"
#include "kernels/cuda/prefill_wgmma.h"
#include "kernels/cuda/wgmma_prefill_attention.h"

namespace augur::kernels {
namespace {

constexpr int kWarpgroup = 128;
constexpr int kWarpgroupRows = 64;

// Warpgroups of a CTA: consumers, then one producer. Accumulators, queries and p take 144 registers
// a thread at head_dim 128: two consumers at 240. At 64 they take 96, so that three go at 160; a
// page is then read from L2 once for 192 rows. All registers of an SM, 65536, are given out: the
// launch gives every thread the same number, then consumers take what the producer leaves.
template <int kHeadDim>
struct Roles {
  static constexpr int kConsumers = kHeadDim == 128 ? 2 : 3;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kTileRows = kConsumers * kWarpgroupRows;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                (kConsumers + 1) * kLaunchRegisters);
};

constexpr int kStages = 6;  // pages in shared memory: 192 KiB at head_dim 128
// Pages whose copies are under way behind the one that is waited for. Consumers hold two stages
// each, so at least two more than these keep both sides going.
constexpr int kCopiesAhead = 3;
static_assert(kStages >= kCopiesAhead + 2);

template <int kHeadDim>
struct SharedTile {
  static constexpr int kHalfPageBytes = kBlockTokens * kHeadDim * 2;  // K or V
  static constexpr int kPageBytes = 2 * kHalfPageBytes;
  static constexpr int kFirstBadOffset = kStages * kPageBytes;
  static constexpr int kTileOffset = kFirstBadOffset + kHeadDim * static_cast<int>(sizeof(int));
  static constexpr int kFullOffset = kTileOffset + static_cast<int>(sizeof(TileRows));
  static constexpr int kEmptyOffset = kFullOffset + kStages * 8;
  static constexpr int kBytes = kEmptyOffset + kStages * 8;
  static_assert(kFullOffset % 8 == 0);
};

// A stage's two barriers, for the round of a page: full by the producer's threads, empty by the
// consumers' warps.
struct Stage {
  uint32_t data;
  uint32_t full;
  uint32_t empty;
  int parity;
};

template <int kHeadDim>
__device__ __forceinline__ Stage StageOf(uint32_t shared, int page) {
  using Shared = SharedTile<kHeadDim>;
  const int index = page % kStages;
  return {shared + index * Shared::kPageBytes, shared + Shared::kFullOffset + index * 8,
          shared + Shared::kEmptyOffset + index * 8, page / kStages % 2};
}

// Calls body(i, offset in its half page) for this thread's chunks of K or V: chunk thread +
// i * kWarpgroup in the order of global memory.
template <int kHeadDim, class Body>
__device__ __forceinline__ void ForOwnChunks(Body&& body) {
  constexpr int kChunks = kHeadDim / 8;
  static_assert(kWarpgroup % (8 * kChunks) == 0);  // a step is whole eights of rows
  const int thread = threadIdx.x % kWarpgroup;
  const int first = SwizzledColumnOffset(thread / kChunks, thread % kChunks);
#pragma unroll
  for (int i = 0; i < kBlockTokens * kChunks / kWarpgroup; ++i) {
    body(i, first + i * (kWarpgroup / kChunks) * 128);
  }
}

template <int kHeadDim>
__device__ __forceinline__ void CopyPage(const std::byte* page, uint32_t to_shared) {
  constexpr int kHalfPageBytes = SharedTile<kHeadDim>::kHalfPageBytes;
  const std::byte* const from = page + threadIdx.x % kWarpgroup * 16;
  ForOwnChunks<kHeadDim>([&](int i, int offset) {
    CopyChunk(to_shared + offset, from + i * kWarpgroup * 16);
    CopyChunk(to_shared + kHalfPageBytes + offset, from + kHalfPageBytes + i * kWarpgroup * 16);
  });
}

// As in prefill_attention.cu, over the chunks of V that this thread copied.
template <class T, int kHeadDim>
__device__ __forceinline__ void CleanValues(std::byte* values, int first_key, int* first_bad) {
  constexpr int kChunks = kHeadDim / 8;
  const int thread = threadIdx.x % kWarpgroup;
#pragma unroll 1
  for (int item = thread; item < kBlockTokens * kChunks; item += kWarpgroup) {
    const int row = item / kChunks, chunk = item % kChunks;
    uint4* const four = reinterpret_cast<uint4*>(values + SwizzledColumnOffset(row, chunk));
    if (NonFiniteBits<T>(*four) != 0) {
      CleanChunk<T>(reinterpret_cast<uint32_t*>(four), first_key + row, chunk, first_bad);
    }
  }
}

// The producer's whole work.
template <class T, int kHeadDim>
__device__ __forceinline__ void CopyPages(const TileRows& tile, std::byte* shared) {
  using Shared = SharedTile<kHeadDim>;
  const uint32_t shared_address = SharedAddress(shared);
  int* const first_bad = reinterpret_cast<int*>(shared + Shared::kFirstBadOffset);
  const std::byte* next = tile.pages[0];  // read a step before its copy: it takes a while
#pragma unroll 1
  for (int step = 0; step < tile.num_pages + kCopiesAhead; ++step) {
    if (step < tile.num_pages) {
      const std::byte* const from = next;
      if (step + 1 < tile.num_pages) next = tile.pages[step + 1];
      const Stage stage = StageOf<kHeadDim>(shared_address, step);
      WaitAt(stage.empty, stage.parity ^ 1);  // of the round before
      CopyPage<kHeadDim>(from, stage.data);
    }
    CommitCopies();  // behind the last page empty groups, which keep the count
    const int page = step - kCopiesAhead;
    if (page < 0) continue;
    WaitForCopyGroups<kCopiesAhead>();
    if (page >= tile.first_masked_page) {
      std::byte* const values =
          shared + page % kStages * Shared::kPageBytes + Shared::kHalfPageBytes;
      CleanValues<T, kHeadDim>(values, page * kBlockTokens, first_bad);
    }
    PublishToProducts();
    ArriveAt(StageOf<kHeadDim>(shared_address, page).full);
  }
}

template <int kHeadDim>
using Queries = uint32_t[kHeadDim / 16][4];  // A fragments

// The warp's 16 rows from packed row `begin` on, rounded to T; rows behind the tile's end are 0.
template <class T, int kHeadDim>
__device__ __forceinline__ void LoadQueries(const PagedAttentionParams& params,
                                            const TileRows& tile, int begin,
                                            Queries<kHeadDim>& queries) {
  const int lane = threadIdx.x % 32;
  const bool aligned =
      params.q_stride % 2 == 0 && reinterpret_cast<uintptr_t>(params.q) % sizeof(float2) == 0;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int packed = begin + row * 8 + lane / 4;
    const bool is_there = packed < tile.span.end;
    const int at = is_there ? packed : tile.span.begin;
    const int64_t token = tile.first_row + at / tile.span.group;
    const int head = tile.first_head + at % tile.span.group;
    const float* const from = params.q + token * params.q_stride + head * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {  // chunks of 8 columns
      float2 pair;
      if (aligned) {
        pair = *reinterpret_cast<const float2*>(from + i * 8);
      } else {
        pair = {from[i * 8], from[i * 8 + 1]};
      }
      queries[i / 2][i % 2 * 2 + row] = is_there ? PackPair<T>(pair.x, pair.y) : 0u;
    }
  }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void StartScores(const Queries<kHeadDim>& queries, uint32_t keys,
                                            FragmentScores& scores) {
  FenceRegisters();
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const uint32_t at = keys + step / 4 * kSwizzledColumnBytes + step % 4 * 32;
    StartProduct<T, false>(scores, queries[step], SharedMatrix(at), step > 0);
  }
  CommitProducts();
}

template <class T, int kHeadDim>
__device__ __forceinline__ void StartValues(const FragmentWeights& weights, uint32_t values,
                                            FragmentRows<kHeadDim>& rows) {
  FenceRegisters();
#pragma unroll
  for (int step = 0; step < kKeySteps; ++step) {
    StartProduct<T, true>(rows.out, weights[step], SharedMatrix(values + step * 16 * 128), true);
  }
  CommitProducts();
}

// This warp has left the page.
template <int kHeadDim>
__device__ __forceinline__ void Leave(uint32_t shared, int page) {
  if (threadIdx.x % 32 == 0) ArriveAt(StageOf<kHeadDim>(shared, page).empty);
}

template <int kHeadDim>
__device__ __forceinline__ uint32_t WaitForPage(uint32_t shared, int page) {
  const Stage stage = StageOf<kHeadDim>(shared, page);
  WaitAt(stage.full, stage.parity);
  return stage.data;
}

// A consumer's pages; `begin` is the warp's first packed row. The warpgroup's products need all its
// warps, so they go to its last row's page together.
template <class T, int kHeadDim>
__device__ __forceinline__ void AttendPages(const TileRows& tile, int own_pages, int begin,
                                            float scale, uint32_t shared,
                                            const Queries<kHeadDim>& queries,
                                            FragmentRows<kHeadDim>& rows) {
  constexpr int kHalfPageBytes = SharedTile<kHeadDim>::kHalfPageBytes;
  FragmentScores scores;
  FragmentWeights weights;
  float factor[2];
  uint32_t data = WaitForPage<kHeadDim>(shared, 0);
  StartScores<T, kHeadDim>(queries, data, scores);
  WaitForProducts<0>();
  KeepInOrder(scores);
  if (tile.first_masked_page <= 0) MaskFragment(tile.span, begin, 0, scores);
  factor[0] = WeighRow(scores, 0, scale, rows.max[0], rows.sum[0]);
  factor[1] = WeighRow(scores, 1, scale, rows.max[1], rows.sum[1]);
  PackWeights<T>(scores, weights);
#pragma unroll 1
  for (int page = 1; page < own_pages; ++page) {
    const uint32_t values = data + kHalfPageBytes;
    data = WaitForPage<kHeadDim>(shared, page);
    StartScores<T, kHeadDim>(queries, data, scores);
    StartValues<T, kHeadDim>(weights, values, rows);
    WaitForProducts<1>();
    KeepInOrder(scores);
    if (page >= tile.first_masked_page) MaskFragment(tile.span, begin, page, scores);
    factor[0] = WeighRow(scores, 0, scale, rows.max[0], rows.sum[0]);
    factor[1] = WeighRow(scores, 1, scale, rows.max[1], rows.sum[1]);
    KeepInOrder(scores);
    FinishBefore(rows.sum[0] + rows.sum[1], shared);
    WaitForProducts<0>();
    KeepInOrder(rows.out);
    Leave<kHeadDim>(shared, page - 1);
    ScaleFragment(factor, rows);
    PackWeights<T>(scores, weights);
  }
  StartValues<T, kHeadDim>(weights, data + kHalfPageBytes, rows);
  WaitForProducts<0>();
  KeepInOrder(rows.out);
  Leave<kHeadDim>(shared, own_pages - 1);
}

template <class T, int kHeadDim>
__device__ __forceinline__ void AttendTile(const PagedAttentionParams& params, const TileRows& tile,
                                           std::byte* shared) {
  const uint32_t shared_address = SharedAddress(shared);
  const int warpgroup_begin = tile.span.begin + threadIdx.x / kWarpgroup * kWarpgroupRows;
  PrefillSpan span = tile.span;
  span.begin = min(warpgroup_begin, span.end);
  span.end = min(warpgroup_begin + kWarpgroupRows, span.end);
  const int own_pages = span.NumPages();
  const int begin = warpgroup_begin + threadIdx.x % kWarpgroup / 32 * kFragmentRows;
  if (own_pages > 0) {
    Queries<kHeadDim> queries;
    LoadQueries<T, kHeadDim>(params, tile, begin, queries);
    FragmentRows<kHeadDim> rows;
    Clear(rows);
    AttendPages<T, kHeadDim>(tile, own_pages, begin, params.scale * kLog2E, shared_address, queries,
                             rows);
    const int* const first_bad =
        reinterpret_cast<const int*>(shared + SharedTile<kHeadDim>::kFirstBadOffset);
    WriteFragment(params, tile, begin, first_bad, rows);
  }
  for (int page = own_pages; page < tile.num_pages; ++page) {  // others' pages
    WaitForPage<kHeadDim>(shared_address, page);
    Leave<kHeadDim>(shared_address, page);
  }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(Roles<kHeadDim>::kThreads, 1)
    WgmmaPrefillAttentionKernel(PagedAttentionParams params) {
  WaitForPrevious();
  using Shared = SharedTile<kHeadDim>;
  using Role = Roles<kHeadDim>;
  extern __shared__ __align__(1024) std::byte shared[];
  // The order of prefill_attention.cu.
  const int kv_head = blockIdx.x % params.num_kv_heads;
  const int num_tiles = gridDim.x / params.num_kv_heads;
  const Tile found =
      FindTile<Role::kTileRows>(params, num_tiles - 1 - blockIdx.x / params.num_kv_heads);
  if (found.segment < 0) return;
  TileRows& tile = *reinterpret_cast<TileRows*>(shared + Shared::kTileOffset);
  int* const first_bad = reinterpret_cast<int*>(shared + Shared::kFirstBadOffset);
  for (int i = threadIdx.x; i < kHeadDim; i += Role::kThreads) first_bad[i] = INT_MAX;
  if (threadIdx.x == 0) {
    if (SharedAddress(shared) % 1024 != 0) __trap();  // swizzling goes by addresses
    tile = RowsOf<Role::kTileRows>(params, found, kv_head);
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(shared) + Shared::kFullOffset + i * 8, kWarpgroup);
      InitBarrier(SharedAddress(shared) + Shared::kEmptyOffset + i * 8,
                  Role::kConsumers * kWarpgroup / 32);
    }
  }
  __syncthreads();
  if (threadIdx.x >= Role::kConsumers * kWarpgroup) {
    LowerRegisters<Role::kProducerRegisters>();
    CopyPages<T, kHeadDim>(tile, shared);
  } else {
    RaiseRegisters<Role::kConsumerRegisters>();
    AttendTile<T, kHeadDim>(params, tile, shared);
  }
}

template <class T, int kHeadDim>
void Launch(const PagedAttentionParams& params, cudaStream_t stream) {
  const auto kernel = WgmmaPrefillAttentionKernel<T, kHeadDim>;
  constexpr int kBytes = SharedTile<kHeadDim>::kBytes;
  AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int group = params.num_q_heads / params.num_kv_heads;
  const int tiles =
      MaxPrefillTiles(params.rows, group, params.num_segments, Roles<kHeadDim>::kTileRows);
  const LaunchShape shape{.grid = dim3(tiles * params.num_kv_heads),
                          .block = dim3(Roles<kHeadDim>::kThreads),
                          .shared_bytes = kBytes};
  LaunchKernel(stream, shape, kernel, params);
}

}  // namespace

bool ServesWgmmaPrefillAttention(const PagedAttentionParams& params) {
  return ServesPrefillAttention(params) && (params.head_dim == 64 || params.head_dim == 128);
}

void RunWgmmaPrefillAttention(const PagedAttentionParams& params, cudaStream_t stream) {
  AUGUR_CHECK(ServesWgmmaPrefillAttention(params));
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim);
  if (params.rows == 0 || params.num_segments == 0) return;
  const bool is_bf16 = params.dtype == DType::kBF16;
  if (params.head_dim == 128) {
    is_bf16 ? Launch<__nv_bfloat16, 128>(params, stream) : Launch<__half, 128>(params, stream);
  } else {
    is_bf16 ? Launch<__nv_bfloat16, 64>(params, stream) : Launch<__half, 64>(params, stream);
  }
}

}  // namespace augur::kernels
