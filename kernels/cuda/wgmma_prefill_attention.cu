// The arithmetic is that of prefill_attention.cu, but for one softmax's update a pair of pages
// (from block 0 on; a page that the tile does not reach counts as masked) instead of one a page. A
// CTA stays on its SM and takes one tile after the other. Two warpgroups have 64 rows of a tile
// each; their queries and p are fragments in registers, K and V operands in shared memory. One more
// warpgroup copies operands ahead of them, into the next tile. Scores of a pair are under way
// together with the values of the pair before it, and while they run the warpgroup works on its
// softmax.
#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_operands.h"
#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/prefill_tiles.h"
#include "kernels/cuda/prefill_wgmma.h"
#include "kernels/cuda/wgmma_prefill_attention.h"

namespace augur::kernels {
namespace {

constexpr int kConsumers = 2;  // warpgroups; the producer comes behind them
constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kTileRows = kConsumers * kWarpgroupRows;

// Accumulators, queries and p take 192 registers a thread at head_dim 128; at 40 the producer
// spills. All registers of an SM, 65536, are given out: the launch gives every thread the same
// number, then consumers take what the producer leaves.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kConsumerRegisters = 224;
constexpr int kProducerRegisters = 56;
static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
              (kConsumers + 1) * kLaunchRegisters);

// Operands (a pair's K or V) in shared memory: 192 KiB at head_dim 128. Consumers hold two (a
// pair's V and the next one's K), the others are on their way.
constexpr int kStages = 6;
constexpr int kPageRowsBytes = kBlockTokens * 128;  // from a pair's first page to its second one
// Tiles that are known to the CTA: the producer is up to one ahead.
constexpr int kTilesAhead = 2;

// Named barriers; 0 is __syncthreads().
constexpr int kProducerBarrier = 1;
constexpr int kTurnBarrier = 2;  // and 3: a consumer's turn

// A tile as the producer hands it to the consumers; num_pages 0 ends the work.
template <int kHeadDim>
struct SharedTurn {
  TileRows tile;
  int first_bad[kHeadDim];
};

template <int kHeadDim>
struct Shared {
  static constexpr int kHalfPageBytes = kBlockTokens * kHeadDim * 2;  // K or V in memory
  static constexpr int kOperandBytes = kPairTokens * kHeadDim * 2;
  static constexpr int kTurnOffset = kStages * kOperandBytes;
  static constexpr int kBarrierOffset =
      kTurnOffset + kTilesAhead * static_cast<int>(sizeof(SharedTurn<kHeadDim>));
  static constexpr int kBytes = kBarrierOffset + (kStages + kTilesAhead) * 2 * 8;
  static_assert(kBarrierOffset % 8 == 0);

  __device__ static SharedTurn<kHeadDim>& Turn(std::byte* shared, int turn) {
    return reinterpret_cast<SharedTurn<kHeadDim>*>(shared + kTurnOffset)[turn % kTilesAhead];
  }
};

// A place in shared memory with two barriers, and the round in which it holds the n-th thing.
// Operands: full by the producer's threads, empty by the consumers' warps; tiles likewise.
struct Place {
  uint32_t full;
  uint32_t empty;
  int parity;
};

template <int kHeadDim>
__device__ __forceinline__ Place OperandPlace(uint32_t shared, int operand) {
  const uint32_t at = shared + Shared<kHeadDim>::kBarrierOffset + operand % kStages * 16;
  return {at, at + 8, operand / kStages % 2};
}

template <int kHeadDim>
__device__ __forceinline__ Place TilePlace(uint32_t shared, int turn) {
  const uint32_t at =
      shared + Shared<kHeadDim>::kBarrierOffset + (kStages + turn % kTilesAhead) * 16;
  return {at, at + 8, turn / kTilesAhead % 2};
}

template <int kHeadDim>
__device__ __forceinline__ int OperandOffset(int operand) {
  return operand % kStages * Shared<kHeadDim>::kOperandBytes;
}

// As in prefill_attention.cu, over the chunks of one page's V that this thread copied.
template <class T, int kHeadDim>
__device__ __forceinline__ void CleanValues(std::byte* values, int first_key, int* first_bad) {
  constexpr int kChunks = kHeadDim / 8;
  const int thread = threadIdx.x % kWarpgroup;
#pragma unroll 1
  for (int item = thread; item < kBlockTokens * kChunks; item += kWarpgroup) {
    const int row = item / kChunks, chunk = item % kChunks;
    uint4* const four =
        reinterpret_cast<uint4*>(values + SwizzledColumnOffset<kPairTokens>(row, chunk));
    if (NonFiniteBits<T>(*four) != 0) {
      CleanChunk<T>(reinterpret_cast<uint32_t*>(four), first_key + row, chunk, first_bad);
    }
  }
}

// Starts the copy of a pair's K or V. Of a pair whose second page the tile does not reach, V gets
// zeros there, which p = 0 may meet; K is masked, whatever it is.
template <int kHeadDim>
__device__ __forceinline__ void CopyOperand(const std::byte* const (&pages)[2], bool is_values,
                                            std::byte* shared, int operand) {
  constexpr int kHalfPageBytes = Shared<kHeadDim>::kHalfPageBytes;
  const int offset = OperandOffset<kHeadDim>(operand);
  const uint32_t to = SharedAddress(shared) + offset;
  const int from = is_values ? kHalfPageBytes : 0;
  CopyHalfPage<kHeadDim, kPairTokens>(pages[0] + from, to);
  if (pages[1] != nullptr) {
    CopyHalfPage<kHeadDim, kPairTokens>(pages[1] + from, to + kPageRowsBytes);
  } else if (is_values) {
    std::byte* const values = shared + offset + kPageRowsBytes;
    ForOwnChunks<kHeadDim, kPairTokens>([&](int, int chunk_offset) {
      *reinterpret_cast<uint4*>(values + chunk_offset) = uint4{0, 0, 0, 0};
    });
  }
}

// Cleans this thread's share of a pair's V, `pair` of the tile, in those of its pages that some row
// of the tile does not see in whole.
template <class T, int kHeadDim>
__device__ __forceinline__ void CleanPair(SharedTurn<kHeadDim>& turn, std::byte* values, int pair) {
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const int page = 2 * pair + half;
    if (page < turn.tile.first_masked_page || page >= turn.tile.num_pages) continue;
    CleanValues<T, kHeadDim>(values + half * kPageRowsBytes, page * kBlockTokens, turn.first_bad);
  }
}

// The tile's pairs: K, V, K, V... `operand` counts over all tiles.
template <class T, int kHeadDim>
__device__ __forceinline__ void CopyTile(SharedTurn<kHeadDim>& turn, std::byte* shared,
                                         int operand) {
  const int num_pages = turn.tile.num_pages;
  const int num_operands = (num_pages + 1) / 2 * 2;
  const std::byte* const* const list = turn.tile.pages;
  // Read a step before its copy: it takes a while.
  const std::byte* next[2] = {list[0], num_pages > 1 ? list[1] : nullptr};
  const std::byte* pages[2];
#pragma unroll 1
  for (int step = 0; step < num_operands; ++step) {
    const Place place = OperandPlace<kHeadDim>(SharedAddress(shared), operand + step);
    WaitForBarrier(place.empty, place.parity ^ 1);
    const int page = step / 2 * 2;
    if (step % 2 == 0) {
      pages[0] = next[0];
      pages[1] = next[1];
      if (page + 2 < num_pages) next[0] = list[page + 2];
      next[1] = page + 3 < num_pages ? list[page + 3] : nullptr;
    }
    CopyOperand<kHeadDim>(pages, step % 2 == 1, shared, operand + step);
    if (step % 2 == 1 && page + 1 >= turn.tile.first_masked_page) {
      WaitForCopies();
      CleanPair<T>(turn, shared + OperandOffset<kHeadDim>(operand + step), page / 2);
      ArriveAt(place.full);
    } else {
      ArriveAfterCopies(place.full);
    }
  }
}

// Queries come from memory, and the consumers wait for them: this far ahead they reach the L2.
template <int kHeadDim>
__device__ __forceinline__ void PrefetchQueries(const PagedAttentionParams& params,
                                                const TileRows& tile) {
  static_assert(kTileRows == kWarpgroup);
  const int packed = tile.span.begin + threadIdx.x % kWarpgroup;
  if (packed >= tile.span.end) return;
  const int64_t token = tile.first_row + packed / tile.span.group;
  const int head = tile.first_head + packed % tile.span.group;
  const float* const from = params.q + token * params.q_stride + head * kHeadDim;
#pragma unroll
  for (int i = 0; i < kHeadDim; i += 32) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
}

// The producer's whole work.
template <class T, int kHeadDim>
__device__ __forceinline__ void Produce(const PagedAttentionParams& params, PrefillTurns* turns,
                                        std::byte* shared) {
  const uint32_t shared_address = SharedAddress(shared);
  const int thread = threadIdx.x % kWarpgroup;
  const int total = CountTiles(params, kTileRows) * params.num_kv_heads;
  int next = blockIdx.x;  // right in thread 0
  int operand = 0;
#pragma unroll 1
  for (int n = 0;; ++n) {
    const Place place = TilePlace<kHeadDim>(shared_address, n);
    WaitForBarrier(place.empty, place.parity ^ 1);
    SharedTurn<kHeadDim>& turn = Shared<kHeadDim>::Turn(shared, n);
    if (thread < kHeadDim) turn.first_bad[thread] = INT_MAX;
    if (thread < 32) {
      const int index = __shfl_sync(kAllLanes, next, 0);
      // Heads of a tile run side by side; the last tiles of a segment, the longest ones, come
      // first.
      if (index < total) {
        const Tile tile = FindTile(params, kTileRows, (total - 1 - index) / params.num_kv_heads);
        if (thread == 0) {
          turn.tile = RowsOf(params, kTileRows, tile, index % params.num_kv_heads);
          next = gridDim.x + atomicAdd(&turns->next, 1u);
        }
      } else if (thread == 0) {
        turn.tile.num_pages = 0;
      }
    }
    SyncNamed<kProducerBarrier, kWarpgroup>();
    ArriveAt(place.full);
    if (turn.tile.num_pages == 0) break;
    PrefetchQueries<kHeadDim>(params, turn.tile);
    CopyTile<T, kHeadDim>(turn, shared, operand);
    operand += (turn.tile.num_pages + 1) / 2 * 2;
  }
  if (thread != 0) return;
  __threadfence();
  if (atomicAdd(&turns->done, 1u) == gridDim.x - 1) *turns = {};  // for the next launch
}

using PairScores = FragmentScores<kPairTokens>;
using PairWeights = FragmentWeights<kPairTokens>;

// This warp has left the operand.
template <int kHeadDim>
__device__ __forceinline__ void Leave(uint32_t shared, int operand) {
  if (threadIdx.x % 32 == 0) ArriveAt(OperandPlace<kHeadDim>(shared, operand).empty);
}

template <int kHeadDim>
__device__ __forceinline__ uint32_t WaitForOperand(uint32_t shared, int operand) {
  const Place place = OperandPlace<kHeadDim>(shared, operand);
  WaitForBarrier(place.full, place.parity);
  PublishToProducts();
  return shared + OperandOffset<kHeadDim>(operand);
}

// Consumers start their products in turns, so that one's softmax runs beside the other's products.
// Both take a turn at every pair of a tile.
__device__ __forceinline__ void WaitForTurn() {
  SyncNamed<kTurnBarrier, kConsumers * kWarpgroup>(threadIdx.x / kWarpgroup);
}
__device__ __forceinline__ void PassTurn() {
  ArriveNamed<kTurnBarrier, kConsumers * kWarpgroup>(1 - threadIdx.x / kWarpgroup);
}

// Scores -> p, masked where the pair needs it.
__device__ __forceinline__ void WeighPair(const TileRows& tile, int begin, int pair, float scale,
                                          PairScores& scores, float (&factor)[2], float (&max)[2],
                                          float (&sum)[2]) {
  if (2 * pair + 1 >= tile.first_masked_page) {
    MaskFragment(tile.span, begin, pair * kPairTokens, scores);
  }
  factor[0] = WeighRow(scores, 0, scale, max[0], sum[0]);
  factor[1] = WeighRow(scores, 1, scale, max[1], sum[1]);
}

// A consumer's pairs, at least one; `begin` is the warp's first packed row. The warpgroup's
// products need all its warps, so they go to its last row's page together. The tile's operands
// begin with number `operand`.
template <class T, int kHeadDim>
__device__ __forceinline__ void AttendPairs(const TileRows& tile, int own_pairs, int begin,
                                            float scale, uint32_t shared, int operand,
                                            const Queries<kHeadDim>& queries,
                                            FragmentRows<kHeadDim>& rows) {
  PairScores scores;
  PairWeights weights;
  float factor[2];
  uint32_t data = WaitForOperand<kHeadDim>(shared, operand);
  WaitForTurn();
  StartScores<T, kHeadDim>(queries, data, scores);
  PassTurn();
  WaitForProducts<0>();
  KeepInOrder(scores);
  Leave<kHeadDim>(shared, operand);
  WeighPair(tile, begin, 0, scale, scores, factor, rows.max, rows.sum);
  PackWeights<T>(scores, weights);
#pragma unroll 1
  for (int pair = 1; pair < own_pairs; ++pair) {
    operand += 2;
    data = WaitForOperand<kHeadDim>(shared, operand);
    WaitForTurn();
    StartScores<T, kHeadDim>(queries, data, scores);
    data = WaitForOperand<kHeadDim>(shared, operand - 1);
    StartValues<T, kHeadDim>(weights, data, rows);
    PassTurn();
    WaitForProducts<1>();
    KeepInOrder(scores);
    Leave<kHeadDim>(shared, operand);
    WeighPair(tile, begin, pair, scale, scores, factor, rows.max, rows.sum);
    KeepInOrder(scores);
    FinishBefore(rows.sum[0] + rows.sum[1], shared);
    WaitForProducts<0>();
    KeepInOrder(rows.out);
    Leave<kHeadDim>(shared, operand - 1);
    ScaleFragment(factor, rows);
    PackWeights<T>(scores, weights);
  }
  data = WaitForOperand<kHeadDim>(shared, operand + 1);
  StartValues<T, kHeadDim>(weights, data, rows);
  WaitForProducts<0>();
  KeepInOrder(rows.out);
  Leave<kHeadDim>(shared, operand + 1);
}

template <class T, int kHeadDim>
__device__ __forceinline__ void AttendTile(const PagedAttentionParams& params,
                                           const SharedTurn<kHeadDim>& turn, uint32_t shared,
                                           int operand) {
  const TileRows& tile = turn.tile;
  const int warpgroup_begin = tile.span.begin + threadIdx.x / kWarpgroup * kWarpgroupRows;
  PrefillSpan span = tile.span;
  span.begin = min(warpgroup_begin, span.end);
  span.end = min(warpgroup_begin + kWarpgroupRows, span.end);
  const int own_pairs = (span.NumPages() + 1) / 2;
  const int begin = warpgroup_begin + threadIdx.x % kWarpgroup / 32 * kFragmentRows;
  if (own_pairs > 0) {
    Queries<kHeadDim> queries;
    LoadQueries<T, kHeadDim>(params, tile, begin, queries);
    FragmentRows<kHeadDim> rows;
    Clear(rows);
    AttendPairs<T, kHeadDim>(tile, own_pairs, begin, params.scale * kLog2E, shared, operand,
                             queries, rows);
    WriteFragment(params, tile, begin, FirstBadKeys{turn.first_bad}, rows);
  }
  const int num_pairs = (tile.num_pages + 1) / 2;
  for (int pair = own_pairs; pair < num_pairs; ++pair) {  // the other's
    WaitForTurn();
    PassTurn();
    for (int i = 0; i < 2; ++i) {
      WaitForOperand<kHeadDim>(shared, operand + 2 * pair + i);
      Leave<kHeadDim>(shared, operand + 2 * pair + i);
    }
  }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void Consume(const PagedAttentionParams& params, std::byte* shared) {
  const uint32_t shared_address = SharedAddress(shared);
  if (threadIdx.x / kWarpgroup == 1) PassTurn();  // the first one is warpgroup 0's
  int operand = 0;
#pragma unroll 1
  for (int n = 0;; ++n) {
    const Place place = TilePlace<kHeadDim>(shared_address, n);
    WaitForBarrier(place.full, place.parity);
    const SharedTurn<kHeadDim>& turn = Shared<kHeadDim>::Turn(shared, n);
    const int num_pages = turn.tile.num_pages;
    if (num_pages == 0) break;
    AttendTile<T, kHeadDim>(params, turn, shared_address, operand);
    operand += (num_pages + 1) / 2 * 2;
    __syncwarp();
    if (threadIdx.x % 32 == 0) ArriveAt(place.empty);
  }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    WgmmaPrefillAttentionKernel(PagedAttentionParams params, PrefillTurns* turns) {
  WaitForPrevious();
  extern __shared__ __align__(1024) std::byte shared[];
  if (threadIdx.x == 0) {
    if (SharedAddress(shared) % 1024 != 0) __trap();  // swizzling goes by addresses
    for (int i = 0; i < kStages; ++i) {
      const Place place = OperandPlace<kHeadDim>(SharedAddress(shared), i);
      InitBarrier(place.full, kWarpgroup);
      InitBarrier(place.empty, kConsumerWarps);
    }
    for (int i = 0; i < kTilesAhead; ++i) {
      const Place place = TilePlace<kHeadDim>(SharedAddress(shared), i);
      InitBarrier(place.full, kWarpgroup);
      InitBarrier(place.empty, kConsumerWarps);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    LowerRegisters<kProducerRegisters>();
    Produce<T, kHeadDim>(params, turns, shared);
  } else {
    RaiseRegisters<kConsumerRegisters>();
    Consume<T, kHeadDim>(params, shared);
  }
}

template <class T, int kHeadDim>
void Launch(const PagedAttentionParams& params, int num_sms, PrefillTurns* turns,
            cudaStream_t stream) {
  const auto kernel = WgmmaPrefillAttentionKernel<T, kHeadDim>;
  constexpr int kBytes = Shared<kHeadDim>::kBytes;
  AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int group = params.num_q_heads / params.num_kv_heads;
  const int tiles = MaxPrefillTiles(params.rows, group, params.num_segments, kTileRows);
  const LaunchShape shape{.grid = dim3(std::min(num_sms, tiles * params.num_kv_heads)),
                          .block = dim3(kThreads),
                          .shared_bytes = kBytes};
  LaunchKernel(stream, shape, kernel, params, turns);
}

}  // namespace

void RunWgmmaPrefillAttention(const PagedAttentionParams& params, int num_sms, PrefillTurns* turns,
                              cudaStream_t stream) {
  AUGUR_CHECK(params.head_dim == 64 || params.head_dim == 128);
  const bool is_bf16 = params.dtype == DType::kBF16;
  if (params.head_dim == 128) {
    is_bf16 ? Launch<__nv_bfloat16, 128>(params, num_sms, turns, stream)
            : Launch<__half, 128>(params, num_sms, turns, stream);
  } else {
    is_bf16 ? Launch<__nv_bfloat16, 64>(params, num_sms, turns, stream)
            : Launch<__half, 64>(params, num_sms, turns, stream);
  }
}

}  // namespace augur::kernels
