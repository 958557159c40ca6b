// A tile is a few neighbouring tokens of one kv head, all heads of its group: two warpgroups have
// up to 64 rows each, whole tokens. The union of its tokens' choices is walked once, in ascending
// order; one more warpgroup finds the union and copies K and V of its blocks ahead, each with the
// word of the tokens that have chosen it. A warpgroup leaves out blocks that none of its tokens has
// chosen, a warp their softmax.
//
// The arithmetic is that of prefill_attention.cu, one update a block, and a row's updates are those
// of its own blocks: in any other block its max and sum stay and all its p are 0, and 0 times a
// finite value changes nothing that it has gathered. Values that are not finite become 0 in shared
// memory where some row of the tile does not see the whole block or has not chosen it, and each
// column keeps the tokens that did see one, which get NaN there.
#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_operands.h"
#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/prefill_tiles.h"
#include "kernels/cuda/prefill_wgmma.h"
#include "kernels/cuda/sparse_prefill_attention.h"

namespace augur::kernels {
namespace {

constexpr int kConsumers = 2;  // warpgroups; the producer comes behind them
constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kProducerWarps = kWarpgroup / 32;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;

// As in wgmma_prefill_attention.cu.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kConsumerRegisters = 216;
constexpr int kProducerRegisters = 72;
static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
              (kConsumers + 1) * kLaunchRegisters);

// Blocks whose union is found at a time: 128 Ki tokens.
constexpr int kWindowBlocks = 2048;
constexpr int kWindowShare = kWindowBlocks / kWarpgroup;  // a thread's
// Values are looked through this many blocks behind the copies.
constexpr int kCleaningLag = 2;
// Tiles that are known to the CTA: the producer is up to one ahead.
constexpr int kTilesAhead = 2;

constexpr int kProducerBarrier = 1;

// A tile as the producer hands it to the consumers; without pages it ends the work.
template <int kHeadDim>
struct SharedTurn {
  TileRows parts[kConsumers];  // each warpgroup's rows
  int segment;
  uint32_t bad_tokens[kHeadDim];  // that see a value which is not finite in this column
};

// A block in shared memory. tokens 0: the tile's end, no block.
struct StageHeader {
  int block;
  uint32_t tokens;  // of the tile that have chosen it, the first one the lowest bit
};

// Blocks of a window that some token has chosen.
struct Union {
  uint32_t tokens[kWindowBlocks];
  uint16_t blocks[kWindowBlocks];  // ascending
  int warp_counts[kProducerWarps];
};

template <int kHeadDim>
struct Shared {
  static constexpr int kHalfPageBytes = kBlockTokens * kHeadDim * 2;  // K or V
  static constexpr int kStages = kHeadDim == 128 ? 6 : 10;            // K and V of a block each
  static constexpr int kTurnOffset = kStages * 2 * kHalfPageBytes;
  static constexpr int kUnionOffset =
      kTurnOffset + kTilesAhead * static_cast<int>(sizeof(SharedTurn<kHeadDim>));
  static constexpr int kHeaderOffset = kUnionOffset + static_cast<int>(sizeof(Union));
  static constexpr int kBarrierOffset =
      kHeaderOffset + kStages * static_cast<int>(sizeof(StageHeader));
  static constexpr int kBytes = kBarrierOffset + (kStages * 3 + kTilesAhead * 2) * 8;
  static_assert(kUnionOffset % 16 == 0 && kBarrierOffset % 8 == 0 && kBytes <= 227 * 1024);

  __device__ static SharedTurn<kHeadDim>& Turn(std::byte* shared, int turn) {
    return reinterpret_cast<SharedTurn<kHeadDim>*>(shared + kTurnOffset)[turn % kTilesAhead];
  }
  __device__ static Union& UnionOf(std::byte* shared) {
    return *reinterpret_cast<Union*>(shared + kUnionOffset);
  }
  __device__ static StageHeader& Header(std::byte* shared, int stage) {
    return reinterpret_cast<StageHeader*>(shared + kHeaderOffset)[stage % kStages];
  }
  __device__ static int KeysOffset(int stage) { return stage % kStages * 2 * kHalfPageBytes; }
  __device__ static int ValuesOffset(int stage) { return KeysOffset(stage) + kHalfPageBytes; }
};

// The n-th block's barriers, and the round in which they have it. Full by the producer's threads
// (keys: and once by the header's writer), empty by the consumers' warps.
struct StagePlace {
  uint32_t keys_full;
  uint32_t values_full;
  uint32_t empty;
  int parity;
};

template <int kHeadDim>
__device__ __forceinline__ StagePlace PlaceOf(uint32_t shared, int stage) {
  constexpr int kStages = Shared<kHeadDim>::kStages;
  const uint32_t at = shared + Shared<kHeadDim>::kBarrierOffset + stage % kStages * 24;
  return {at, at + 8, at + 16, stage / kStages % 2};
}

struct TilePlace {
  uint32_t full;
  uint32_t empty;
  int parity;
};

template <int kHeadDim>
__device__ __forceinline__ TilePlace TilePlaceOf(uint32_t shared, int turn) {
  const uint32_t at = shared + Shared<kHeadDim>::kBarrierOffset + Shared<kHeadDim>::kStages * 24 +
                      turn % kTilesAhead * 16;
  return {at, at + 8, turn / kTilesAhead % 2};
}

__device__ __forceinline__ void SyncProducer() { SyncNamed<kProducerBarrier, kWarpgroup>(); }

// The tile's rows over both warpgroups: `tokens` each, at most.
template <int kHeadDim>
__device__ __forceinline__ void SetParts(const TileRows& tile, int tokens,
                                         SharedTurn<kHeadDim>& turn) {
  for (int i = 0; i < kConsumers; ++i) {
    TileRows& part = turn.parts[i];
    part = tile;
    const int rows = tokens * tile.span.group;
    part.span.begin = min(tile.span.begin + i * rows, tile.span.end);
    part.span.end = min(part.span.begin + rows, tile.span.end);
    part.first_masked_page = part.span.FirstMaskedPage();
  }
}

// What the producer works on.
struct ProducedTile {
  const AttentionSegment* segment;
  int64_t first_list;  // in choices, of the first token
  int num_tokens;
  int first_position;
  int num_pages;
  int first_masked_page;  // of the whole tile
  const std::byte* const* pages;

  __device__ uint32_t AllTokens() const { return 0xffffffffu >> (32 - num_tokens); }
  // Some row of the tile does not see the whole block.
  __device__ bool NeedsCleaning(int block, uint32_t tokens) const {
    return tokens != AllTokens() || block >= first_masked_page;
  }
};

// Sets the word of each block of the window to the tokens that have chosen it.
__device__ __forceinline__ void MarkChoices(const PagedAttentionParams& params,
                                            const ProducedTile& tile, int first_block,
                                            Union& found) {
  constexpr int kAtOnce = 4;  // loads under way
  const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % 32;
  SyncProducer();  // nobody reads the former window any more
  for (int i = thread; i < kWindowBlocks / 4; i += kWarpgroup) {
    reinterpret_cast<uint4*>(found.tokens)[i] = uint4{0, 0, 0, 0};
  }
  SyncProducer();
  const AttentionSegment& segment = *tile.segment;
#pragma unroll 1
  for (int token = thread / 32; token < tile.num_tokens; token += kProducerWarps) {
    const int64_t list = tile.first_list + int64_t{token} * params.num_kv_heads;
    const int32_t* const blocks = segment.choices + list * segment.choice_stride;
    const int count = segment.choice_counts[list];
#pragma unroll 1
    for (int begin = lane; begin < count; begin += 32 * kAtOnce) {
      int32_t block[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        block[i] = begin + 32 * i < count ? blocks[begin + 32 * i] : -1;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const unsigned at = static_cast<unsigned>(block[i] - first_block);
        if (block[i] >= 0 && at < kWindowBlocks) atomicOr(&found.tokens[at], 1u << token);
      }
    }
  }
  SyncProducer();
}

// Lists the blocks of the window that have a token. Gives their number.
__device__ __forceinline__ int ListUnion(Union& found) {
  const int thread = threadIdx.x % kWarpgroup, lane = threadIdx.x % 32, warp = thread / 32;
  const uint32_t* const own = found.tokens + thread * kWindowShare;
  uint32_t chosen = 0;  // bit i: block i of this thread's share
#pragma unroll
  for (int i = 0; i < kWindowShare; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(own + i);
    chosen |= ((four.x != 0) | (four.y != 0) << 1 | (four.z != 0) << 2 | (four.w != 0) << 3) << i;
  }
  int end = __popc(chosen);
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, end, distance);
    if (lane >= distance) end += other;
  }
  if (lane == 31) found.warp_counts[warp] = end;
  SyncProducer();
  int place = end - __popc(chosen), count = 0;
  for (int i = 0; i < kProducerWarps; ++i) {
    if (i < warp) place += found.warp_counts[i];
    count += found.warp_counts[i];
  }
#pragma unroll 1
  for (; chosen != 0; chosen &= chosen - 1) {
    found.blocks[place++] = static_cast<uint16_t>(thread * kWindowShare + __ffs(chosen) - 1);
  }
  SyncProducer();
  return count;
}

// Over the chunks of a block's V that this thread copied: elements that are not finite become 0.
template <class T, int kHeadDim>
__device__ __forceinline__ void CleanValues(std::byte* values, const ProducedTile& tile, int block,
                                            uint32_t tokens, uint32_t* bad_tokens) {
  uint32_t any = 0;
  ForOwnChunks<kHeadDim, kBlockTokens>([&](int, int offset) {
    any |= NonFiniteBits<T>(*reinterpret_cast<const uint4*>(values + offset));
  });
  if (any == 0) return;
  constexpr int kChunks = kHeadDim / 8;
#pragma unroll 1
  for (int i = threadIdx.x % kWarpgroup; i < kBlockTokens * kChunks; i += kWarpgroup) {
    const int row = i / kChunks, chunk = i % kChunks;
    // Tokens from the key's own on see it.
    const int first = max(0, block * kBlockTokens + row - tile.first_position);
    const uint32_t seeing = first < 32 ? tokens & 0xffffffffu << first : 0;
    std::byte* const at = values + SwizzledColumnOffset<kBlockTokens>(row, chunk);
    CleanChunk<T>(reinterpret_cast<uint32_t*>(at), chunk,
                  [&](int column) { atomicOr(bad_tokens + column, seeing); });
  }
}

// Hands over a block's values that have to be looked through, once this thread's copies of it are
// there: kCleaningLag groups may be on their way behind them.
template <class T, int kHeadDim>
__device__ __forceinline__ void FinishValues(const ProducedTile& tile, int block, uint32_t tokens,
                                             std::byte* shared, int stage, uint32_t* bad_tokens) {
  if (!tile.NeedsCleaning(block, tokens)) return;
  WaitForCopyGroups<kCleaningLag>();
  CleanValues<T, kHeadDim>(shared + Shared<kHeadDim>::ValuesOffset(stage), tile, block, tokens,
                           bad_tokens);
  ArriveAt(PlaceOf<kHeadDim>(SharedAddress(shared), stage).values_full);
}

// Copies the `count` blocks of the window's union to the stages from `stage` on.
template <class T, int kHeadDim>
__device__ __forceinline__ void CopyUnion(const ProducedTile& tile, int first_block, int count,
                                          std::byte* shared, int stage, uint32_t* bad_tokens) {
  using Layout = Shared<kHeadDim>;
  const Union& found = Layout::UnionOf(shared);
  const uint32_t shared_address = SharedAddress(shared);
  const int lane = threadIdx.x % 32;
  unsigned long long lanes_page = 0;  // of one of 32 blocks
  const auto finish = [&](int i) {
    const int at = found.blocks[i];
    FinishValues<T, kHeadDim>(tile, first_block + at, found.tokens[at], shared, stage + i,
                              bad_tokens);
  };
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (i % 32 == 0 && i + lane < count) {
      lanes_page =
          reinterpret_cast<unsigned long long>(tile.pages[first_block + found.blocks[i + lane]]);
    }
    const auto* const page =
        reinterpret_cast<const std::byte*>(__shfl_sync(kAllLanes, lanes_page, i % 32));
    const int at = found.blocks[i];
    const StageHeader header = {first_block + at, found.tokens[at]};
    const StagePlace place = PlaceOf<kHeadDim>(shared_address, stage + i);
    WaitForBarrier(place.empty, place.parity ^ 1);
    if (threadIdx.x % kWarpgroup == 0) {
      Layout::Header(shared, stage + i) = header;
      ArriveAt(place.keys_full);
    }
    CopyHalfPage<kHeadDim, kBlockTokens>(page, shared_address + Layout::KeysOffset(stage + i));
    ArriveAfterCopies(place.keys_full);
    CopyHalfPage<kHeadDim, kBlockTokens>(page + Layout::kHalfPageBytes,
                                         shared_address + Layout::ValuesOffset(stage + i));
    if (!tile.NeedsCleaning(header.block, header.tokens)) ArriveAfterCopies(place.values_full);
    CommitCopies();
    if (i >= kCleaningLag) finish(i - kCleaningLag);
  }
  WaitForCopies();
#pragma unroll 1
  for (int i = max(0, count - kCleaningLag); i < count; ++i) finish(i);
}

template <int kHeadDim>
__device__ __forceinline__ void EndTile(std::byte* shared, int stage) {
  const StagePlace place = PlaceOf<kHeadDim>(SharedAddress(shared), stage);
  WaitForBarrier(place.empty, place.parity ^ 1);
  if (threadIdx.x % kWarpgroup == 0) {
    Shared<kHeadDim>::Header(shared, stage) = {0, 0};
    ArriveAt(place.keys_full);
  }
  ArriveAt(place.keys_full);
  ArriveAt(place.values_full);
}

// Queries come from memory, and the consumers wait for them: this far ahead they reach the L2.
template <int kHeadDim>
__device__ __forceinline__ void PrefetchQueries(const PagedAttentionParams& params,
                                                const SharedTurn<kHeadDim>& turn) {
  const int thread = threadIdx.x % kWarpgroup;
  const TileRows& part = turn.parts[thread / kWarpgroupRows];
  const int packed = part.span.begin + thread % kWarpgroupRows;
  if (packed >= part.span.end) return;
  const int64_t token = part.first_row + packed / part.span.group;
  const int head = part.first_head + packed % part.span.group;
  const float* const from = params.q + token * params.q_stride + head * kHeadDim;
#pragma unroll
  for (int i = 0; i < kHeadDim; i += 32) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
  }
}

template <int kHeadDim>
__device__ __forceinline__ ProducedTile ProducedOf(const PagedAttentionParams& params,
                                                   const SharedTurn<kHeadDim>& turn) {
  const TileRows& first = turn.parts[0];
  const int first_token = first.span.begin / first.span.group;
  ProducedTile tile;
  tile.segment = params.segments + turn.segment;
  tile.first_list =
      (first.first_row + first_token) * params.num_kv_heads + first.first_head / first.span.group;
  tile.num_tokens = turn.parts[kConsumers - 1].span.end / first.span.group - first_token;
  tile.first_position = first.span.first_position + first_token;
  tile.num_pages = first.num_pages;
  tile.first_masked_page = first.first_masked_page;
  tile.pages = first.pages;
  return tile;
}

// The producer's whole work.
template <class T, int kHeadDim>
__device__ __forceinline__ void Produce(const PagedAttentionParams& params, PrefillTurns* turns,
                                        std::byte* shared) {
  const int thread = threadIdx.x % kWarpgroup;
  const int group = params.num_q_heads / params.num_kv_heads;
  const int part_tokens = ChoosingTokens(group);
  const int tile_rows = kConsumers * part_tokens * group;
  const int tiles = CountTiles(params, tile_rows);
  Union& found = Shared<kHeadDim>::UnionOf(shared);
  int next = blockIdx.x;  // right in thread 0
  int stage = 0;
#pragma unroll 1
  for (int n = 0;; ++n) {
    const TilePlace place = TilePlaceOf<kHeadDim>(SharedAddress(shared), n);
    WaitForBarrier(place.empty, place.parity ^ 1);
    SharedTurn<kHeadDim>& turn = Shared<kHeadDim>::Turn(shared, n);
    if (thread < kHeadDim) turn.bad_tokens[thread] = 0;
    if (thread < 32) {
      const int index = __shfl_sync(kAllLanes, next, 0);
      // One kv head after the other, since the keys and values of one may fit the L2; the last
      // tiles of a segment, the longest ones, come first.
      if (index < tiles * params.num_kv_heads) {
        const Tile tile = FindTile(params, tile_rows, tiles - 1 - index % tiles);
        if (thread == 0) {
          SetParts(RowsOf(params, tile_rows, tile, index / tiles), part_tokens, turn);
          turn.segment = tile.segment;
          next = gridDim.x + atomicAdd(&turns->next, 1u);
        }
      } else if (thread == 0) {
        turn.parts[0].num_pages = 0;
      }
    }
    SyncProducer();
    ArriveAt(place.full);
    if (turn.parts[0].num_pages == 0) break;
    PrefetchQueries(params, turn);
    const ProducedTile tile = ProducedOf(params, turn);
#pragma unroll 1
    for (int first = 0; first < tile.num_pages; first += kWindowBlocks) {
      MarkChoices(params, tile, first, found);
      const int count = ListUnion(found);
      CopyUnion<T, kHeadDim>(tile, first, count, shared, stage, turn.bad_tokens);
      stage += count;
    }
    EndTile<kHeadDim>(shared, stage++);
  }
  if (thread != 0) return;
  __threadfence();
  if (atomicAdd(&turns->done, 1u) == gridDim.x - 1) *turns = {};  // for the next launch
}

// What a lane knows of its rows of a fragment.
struct LaneTokens {
  uint32_t own;      // tokens of the warpgroup, as bits
  uint32_t rows[2];  // the token of each of the lane's rows; 0: the tile does not have the row
};

using BlockScores = FragmentScores<kBlockTokens>;
using BlockWeights = FragmentWeights<kBlockTokens>;

// Keys of a block that FindOwnBlock has found.
template <int kHeadDim>
__device__ __forceinline__ uint32_t OpenKeys(uint32_t shared, int stage) {
  PublishToProducts();
  return shared + Shared<kHeadDim>::KeysOffset(stage);
}

template <int kHeadDim>
__device__ __forceinline__ uint32_t WaitForValues(uint32_t shared, int stage) {
  const StagePlace place = PlaceOf<kHeadDim>(shared, stage);
  WaitForBarrier(place.values_full, place.parity);
  PublishToProducts();
  return shared + Shared<kHeadDim>::ValuesOffset(stage);
}

// This warp has left the block.
template <int kHeadDim>
__device__ __forceinline__ void Leave(uint32_t shared, int stage) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ArriveAt(PlaceOf<kHeadDim>(shared, stage).empty);
}

// From `stage` on to the next block that one of the warpgroup's tokens has chosen, leaving those
// between, but not to `limit`. The header's tokens tell whether there was one: none of the
// warpgroup's at the limit or the tile's end, where `stage` stays.
template <int kHeadDim>
__device__ __forceinline__ StageHeader FindOwnBlock(std::byte* shared, uint32_t own, int limit,
                                                    int& stage) {
  const uint32_t shared_address = SharedAddress(shared);
  StageHeader header = {0, 0};
  for (; stage < limit; ++stage) {
    const StagePlace place = PlaceOf<kHeadDim>(shared_address, stage);
    WaitForBarrier(place.keys_full, place.parity);
    header = Shared<kHeadDim>::Header(shared, stage);
    if ((header.tokens & own) != 0 || header.tokens == 0) return header;
    Leave<kHeadDim>(shared_address, stage);
  }
  return {0, 0};
}

// Scores -> p, masked where a row does not see the whole block; 0 for rows that have not chosen it,
// whose max and sum stay.
template <int kHeadDim>
__device__ __forceinline__ void WeighBlock(const TileRows& part, int begin, const LaneTokens& lane,
                                           const StageHeader& header, float scale,
                                           BlockScores& scores, float (&factor)[2],
                                           FragmentRows<kHeadDim>& rows) {
  bool chosen[2];
  float max[2], sum[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    chosen[row] = (header.tokens & lane.rows[row]) != 0;
    factor[row] = 1.0f;
    max[row] = rows.max[row];
    sum[row] = rows.sum[row];
  }
  if (__any_sync(kAllLanes, chosen[0] || chosen[1])) {
    if (header.block >= part.first_masked_page) {
      MaskFragment(part.span, begin, header.block * kBlockTokens, scores);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      factor[row] = WeighRow(scores, row, scale, rows.max[row], rows.sum[row]);
    }
  }
  if (__all_sync(kAllLanes, chosen[0] && chosen[1])) return;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (chosen[row]) continue;
    factor[row] = 1.0f;
    rows.max[row] = max[row];
    rows.sum[row] = sum[row];
#pragma unroll
    for (int n = 0; n < kBlockTokens / 8; ++n) {
      scores[n][2 * row] = scores[n][2 * row + 1] = 0.0f;
    }
  }
}

// A consumer's blocks of the tile, from `stage` on to its end. Scores of a block are under way
// together with the values of the one before it. A block that is held for its values keeps the
// producer from going on, so that the search for the next one must end before that: then the values
// go by themselves.
template <class T, int kHeadDim>
__device__ __forceinline__ void AttendBlocks(const TileRows& part, int begin,
                                             const LaneTokens& lane, float scale, std::byte* shared,
                                             const Queries<kHeadDim>& queries,
                                             FragmentRows<kHeadDim>& rows, int& stage) {
  constexpr int kFarthest = Shared<kHeadDim>::kStages - 1;
  const uint32_t shared_address = SharedAddress(shared);
  BlockScores scores;
  BlockWeights weights;
  float factor[2];
  StageHeader header = FindOwnBlock<kHeadDim>(shared, lane.own, INT_MAX, stage);
#pragma unroll 1
  while ((header.tokens & lane.own) != 0) {
    StartScores<T, kHeadDim>(queries, OpenKeys<kHeadDim>(shared_address, stage), scores);
    WaitForProducts<0>();
    KeepInOrder(scores);
    WeighBlock(part, begin, lane, header, scale, scores, factor, rows);
    ScaleFragment(factor, rows);
    PackWeights<T>(scores, weights);
    int held = stage;
#pragma unroll 1
    for (;;) {
      ++stage;
      header = FindOwnBlock<kHeadDim>(shared, lane.own, held + kFarthest, stage);
      if ((header.tokens & lane.own) == 0) break;
      const uint32_t keys = OpenKeys<kHeadDim>(shared_address, stage);
      StartScores<T, kHeadDim>(queries, keys, scores);
      StartValues<T, kHeadDim>(weights, WaitForValues<kHeadDim>(shared_address, held), rows);
      WaitForProducts<1>();
      KeepInOrder(scores);
      WeighBlock(part, begin, lane, header, scale, scores, factor, rows);
      KeepInOrder(scores);
      FinishBefore(rows.sum[0] + rows.sum[1], shared_address);
      WaitForProducts<0>();
      KeepInOrder(rows.out);
      Leave<kHeadDim>(shared_address, held);
      ScaleFragment(factor, rows);
      PackWeights<T>(scores, weights);
      held = stage;
    }
    StartValues<T, kHeadDim>(weights, WaitForValues<kHeadDim>(shared_address, held), rows);
    WaitForProducts<0>();
    KeepInOrder(rows.out);
    Leave<kHeadDim>(shared_address, held);
    header = FindOwnBlock<kHeadDim>(shared, lane.own, INT_MAX, stage);
  }
  Leave<kHeadDim>(shared_address, stage++);  // the tile's end
}

// Tokens that have met a value which is not finite, by column; `first_token` of the segment is the
// lowest bit.
struct BadTokens {
  const uint32_t* tokens;
  int first_token;

  __device__ bool Reach(int column, const PrefillSpan& span, int packed) const {
    return (tokens[column] >> (packed / span.group - first_token) & 1) != 0;
  }
};

template <class T, int kHeadDim>
__device__ __forceinline__ void AttendTile(const PagedAttentionParams& params,
                                           const SharedTurn<kHeadDim>& turn, std::byte* shared,
                                           int& stage) {
  const TileRows& part = turn.parts[threadIdx.x / kWarpgroup];
  const PrefillSpan& span = part.span;
  const int first_token = turn.parts[0].span.begin / span.group;
  const int begin = span.begin + threadIdx.x % kWarpgroup / 32 * kFragmentRows;
  LaneTokens lane = {};
  Queries<kHeadDim> queries = {};
  if (span.begin < span.end) {
    const int first = span.begin / span.group - first_token;
    const int end = span.end / span.group - first_token;
    lane.own = 0xffffffffu >> (32 - (end - first)) << first;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int packed = begin + row * 8 + threadIdx.x % 32 / 4;
      if (packed < span.end) lane.rows[row] = 1u << (packed / span.group - first_token);
    }
    LoadQueries<T, kHeadDim>(params, part, begin, queries);
  }
  FragmentRows<kHeadDim> rows;
  Clear(rows);
  AttendBlocks<T, kHeadDim>(part, begin, lane, params.scale * kLog2E, shared, queries, rows, stage);
  WriteFragment(params, part, begin, BadTokens{turn.bad_tokens, first_token}, rows);
}

template <class T, int kHeadDim>
__device__ __forceinline__ void Consume(const PagedAttentionParams& params, std::byte* shared) {
  int stage = 0;
#pragma unroll 1
  for (int n = 0;; ++n) {
    const TilePlace place = TilePlaceOf<kHeadDim>(SharedAddress(shared), n);
    WaitForBarrier(place.full, place.parity);
    const SharedTurn<kHeadDim>& turn = Shared<kHeadDim>::Turn(shared, n);
    if (turn.parts[0].num_pages == 0) break;
    AttendTile<T, kHeadDim>(params, turn, shared, stage);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ArriveAt(place.empty);
  }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    SparsePrefillAttentionKernel(PagedAttentionParams params, PrefillTurns* turns) {
  WaitForPrevious();
  extern __shared__ __align__(1024) std::byte shared[];
  if (threadIdx.x == 0) {
    if (SharedAddress(shared) % 1024 != 0) __trap();  // swizzling goes by addresses
    for (int i = 0; i < Shared<kHeadDim>::kStages; ++i) {
      const StagePlace place = PlaceOf<kHeadDim>(SharedAddress(shared), i);
      InitBarrier(place.keys_full, kWarpgroup + 1);
      InitBarrier(place.values_full, kWarpgroup);
      InitBarrier(place.empty, kConsumerWarps);
    }
    for (int i = 0; i < kTilesAhead; ++i) {
      const TilePlace place = TilePlaceOf<kHeadDim>(SharedAddress(shared), i);
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
  const auto kernel = SparsePrefillAttentionKernel<T, kHeadDim>;
  constexpr int kBytes = Shared<kHeadDim>::kBytes;
  AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int group = params.num_q_heads / params.num_kv_heads;
  const int tile_rows = kConsumers * ChoosingTokens(group) * group;
  const int tiles = MaxPrefillTiles(params.rows, group, params.num_segments, tile_rows);
  const LaunchShape shape{.grid = dim3(std::min(num_sms, tiles * params.num_kv_heads)),
                          .block = dim3(kThreads),
                          .shared_bytes = kBytes};
  LaunchKernel(stream, shape, kernel, params, turns);
}

}  // namespace

void RunSparsePrefillAttention(const PagedAttentionParams& params, int num_sms, PrefillTurns* turns,
                               cudaStream_t stream) {
  AUGUR_CHECK(params.has_choices && (params.head_dim == 64 || params.head_dim == 128));
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
