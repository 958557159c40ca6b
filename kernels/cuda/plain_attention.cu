// One CTA a (row, kv head, up to kHeads query heads of its group), 64 threads a query head. An
// entry's keys and then its values pass through one tile of shared memory, kTileChannels channels
// at a time:
//
//   scores  thread (head, token): one chain over the channels, ascending
//   p       exp(score - largest so far); sums by warps, in one fixed tree
//   out     thread (head, channels c, c + 64, ...): a chain over the entry's tokens, ascending,
//   then
//           out = out * factor + chain
//
// Tokens behind the row's position are never read.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plain_attention.h"
#include "kernels/kv_page.h"

namespace augur::kernels {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kHeadThreads = kBlockTokens;  // one a token of the entry
constexpr int kHeadWarps = kHeadThreads / kWarpThreads;
// 256 threads: a group of 4 or less reads its keys once, and five CTAs still fit an SM.
constexpr int kHeads = 4;
constexpr int kTileChannels = kHeadThreads;  // one a thread of a head; 16 KiB of float32
// Odd, so that neighbouring tokens of one channel lie in different banks.
constexpr int kTileStride = kTileChannels + 1;
constexpr int kMaxTiles = kPlainAttentionMaxHeadDim / kTileChannels;

struct Shared {
  float tile[kBlockTokens * kTileStride];  // [token][channel]
  float q[kHeads][kPlainAttentionMaxHeadDim];
  float p[kHeads][kBlockTokens];
  float warp_max[kHeads * kHeadWarps];
  float warp_sum[kHeads * kHeadWarps];
  int segment;
};

// What a CTA walks: the entries of this call that its row sees.
struct RowList {
  const std::byte* const* pages = nullptr;  // of entry params.first_entry, as the others
  const int32_t* blocks = nullptr;
  const float* const* biases = nullptr;
  int num_entries = 0;
  int position = 0;       // of the row
  bool is_last = false;   // no later call has an entry for the row
  bool by_block = false;  // pages and biases hold all blocks, not the entries'

  __device__ int PlaceOf(int entry) const { return by_block ? blocks[entry] : entry; }
};

// The segment that holds the row, or -1. Segments without rows may say any first row, so all are
// looked at rather than a sorted list searched.
__device__ int FindSegment(const PagedAttentionParams& params, int row, Shared& shared) {
  if (threadIdx.x == 0) shared.segment = -1;
  __syncthreads();
  for (int s = threadIdx.x; s < params.num_segments; s += blockDim.x) {
    const Segment rows = params.segments[s].rows;
    if (row >= rows.first_row && row - rows.first_row < rows.num_rows) shared.segment = s;
  }
  __syncthreads();
  return shared.segment;
}

__device__ RowList ListOf(const PagedAttentionParams& params, const AttentionSegment& segment,
                          int row, int kv_head) {
  RowList list;
  list.position = segment.rows.first_position + row - segment.rows.first_row;
  const int last_block = list.position / kBlockTokens;
  const size_t head_list = size_t(kv_head) * segment.list_stride;
  list.pages = segment.pages + params.pages_offset + head_list;
  if (segment.biases != nullptr) {
    list.biases = segment.biases + params.biases_offset + head_list;
  }
  if (segment.choices != nullptr) {
    const size_t choice = size_t(row) * params.num_kv_heads + kv_head;
    list.blocks = segment.choices + choice * segment.choice_stride;
    list.num_entries = segment.choice_counts[choice];
    list.is_last = true;
    list.by_block = true;
    return list;
  }
  if (segment.blocks == nullptr) {
    list.num_entries = max(0, min(params.end_entry, last_block + 1) - params.first_entry);
    list.is_last = last_block < params.end_entry;
    return list;
  }
  list.blocks = segment.blocks + head_list;
  const int count = segment.counts[kv_head];
  const int here = max(0, min(count, params.end_entry) - params.first_entry);
  list.is_last = count <= params.end_entry || list.blocks[here - 1] >= last_block;
  // The first entry behind the row's own block: lists ascend.
  int end = here;
  for (int begin = 0; begin < end;) {
    const int middle = begin + (end - begin) / 2;
    if (list.blocks[middle] <= last_block) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  list.num_entries = end;
  return list;
}

// 16 bytes of a page.
template <class T>
struct alignas(16) Vector {
  static constexpr int kCount = 16 / sizeof(T);
  T elements[kCount];
};

// Channels [first, first + width) of `tokens` tokens from [64][head_dim] into the tile.
template <class T>
__device__ void LoadTile(const T* from, int head_dim, int first, int width, int tokens,
                         float* tile) {
  constexpr int kCount = Vector<T>::kCount;
  const bool has_vectors =
      head_dim % kCount == 0 && reinterpret_cast<uintptr_t>(from) % sizeof(Vector<T>) == 0;
  if (has_vectors) {
    const int row_vectors = width / kCount;
#pragma unroll 4
    for (int i = threadIdx.x; i < tokens * row_vectors; i += blockDim.x) {
      const int token = i / row_vectors;
      const int channel = (i - token * row_vectors) * kCount;
      const auto vector =
          *reinterpret_cast<const Vector<T>*>(from + token * head_dim + first + channel);
      float* to = tile + token * kTileStride + channel;
#pragma unroll
      for (int j = 0; j < kCount; ++j) to[j] = ToFloat(vector.elements[j]);
    }
    return;
  }
#pragma unroll 4
  for (int i = threadIdx.x; i < tokens * width; i += blockDim.x) {
    const int token = i / width;
    const int channel = i - token * width;
    tile[token * kTileStride + channel] = ToFloat(from[token * head_dim + first + channel]);
  }
}

__device__ float WarpMax(float value) {
#pragma unroll
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, lanes));
  }
  return value;
}

__device__ float WarpSum(float value) {
#pragma unroll
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(~0u, value, lanes);
  }
  return value;
}

// One thread's share of its head's state; max and sum are the same in all threads of a head.
struct State {
  float max = -INFINITY;
  float sum = 0.0f;
  float out[kMaxTiles] = {};  // channels lane, lane + 64, ...
};

// Score of token `lane` for `head`; tokens that are not there have none. All threads of the CTA
// come here together.
template <class T>
__device__ float Score(const PagedAttentionParams& params, const T* keys, int tokens, int head,
                       int lane, Shared& shared) {
  float sum = 0.0f;
  for (int first = 0; first < params.head_dim; first += kTileChannels) {
    const int width = min(kTileChannels, params.head_dim - first);
    __syncthreads();  // everyone is through with the tile
    LoadTile(keys, params.head_dim, first, width, tokens, shared.tile);
    __syncthreads();
    if (lane >= tokens) continue;
    const float* key = shared.tile + lane * kTileStride;
    const float* q = shared.q[head] + first;
#pragma unroll 8
    for (int c = 0; c < width; ++c) sum = fmaf(q[c], key[c], sum);
  }
  return sum;
}

// The entry's keys: p into shared.p, the largest score and the sum into the state. Gives the factor
// for what `out` holds.
__device__ float Softmax(float score, int head, int lane, State& state, Shared& shared) {
  const int warp = threadIdx.x / kWarpThreads;
  const int first_warp = head * kHeadWarps;
  const float warp_max = WarpMax(score);
  if (lane % kWarpThreads == 0) shared.warp_max[warp] = warp_max;
  __syncthreads();
  const float new_max =
      fmaxf(state.max, fmaxf(shared.warp_max[first_warp], shared.warp_max[first_warp + 1]));
  // Nothing but minus infinity (or NaN) so far: infinity - infinity would make a NaN of its own.
  const float base = new_max == -INFINITY ? 0.0f : new_max;
  const float p = expf(score - base);
  const float factor = expf(state.max - base);
  shared.p[head][lane] = p;
  const float warp_sum = WarpSum(p);
  if (lane % kWarpThreads == 0) shared.warp_sum[warp] = warp_sum;
  __syncthreads();
  state.sum =
      fmaf(state.sum, factor, shared.warp_sum[first_warp] + shared.warp_sum[first_warp + 1]);
  state.max = new_max;
  return factor;
}

// out = out * factor + p * values.
template <class T>
__device__ void AddValues(const PagedAttentionParams& params, const T* values, int tokens,
                          float factor, int head, int lane, State& state, Shared& shared) {
#pragma unroll
  for (int tile = 0; tile < kMaxTiles; ++tile) {
    const int first = tile * kTileChannels;
    if (first >= params.head_dim) break;
    const int width = min(kTileChannels, params.head_dim - first);
    __syncthreads();  // everyone is through with the tile
    LoadTile(values, params.head_dim, first, width, tokens, shared.tile);
    __syncthreads();
    if (lane >= width) continue;
    float sum = 0.0f;
    const float* p = shared.p[head];
#pragma unroll 8
    for (int t = 0; t < tokens; ++t) sum = fmaf(p[t], shared.tile[t * kTileStride + lane], sum);
    state.out[tile] = fmaf(state.out[tile], factor, sum);
  }
}

// Where params.states keeps the row's head: head_dim values, then max and sum.
__device__ float* KeptState(const PagedAttentionParams& params, int state_floats, int row,
                            int q_head) {
  return params.states + (size_t(row) * params.num_q_heads + q_head) * state_floats;
}

__device__ State LoadState(const PagedAttentionParams& params, const float* kept, int lane) {
  State state;
#pragma unroll
  for (int tile = 0; tile < kMaxTiles; ++tile) {
    const int channel = tile * kTileChannels + lane;
    if (channel < params.head_dim) state.out[tile] = kept[channel];
  }
  state.max = kept[params.head_dim];
  state.sum = kept[params.head_dim + 1];
  return state;
}

__device__ void KeepState(const PagedAttentionParams& params, const State& state, int lane,
                          float* kept) {
#pragma unroll
  for (int tile = 0; tile < kMaxTiles; ++tile) {
    const int channel = tile * kTileChannels + lane;
    if (channel < params.head_dim) kept[channel] = state.out[tile];
  }
  // Two threads, so that neither waits: the values are the same in all.
  if (lane == 0) kept[params.head_dim] = state.max;
  if (lane == 1) kept[params.head_dim + 1] = state.sum;
}

template <class Out>
__device__ void WriteOut(const PagedAttentionParams& params, int row, int q_head, int lane,
                         const State& state) {
  Out* out =
      static_cast<Out*>(params.out) + (size_t(row) * params.num_q_heads + q_head) * params.head_dim;
#pragma unroll
  for (int tile = 0; tile < kMaxTiles; ++tile) {
    const int channel = tile * kTileChannels + lane;
    if (channel < params.head_dim) out[channel] = FromFloat<Out>(state.out[tile] / state.sum);
  }
}

template <class T>
__global__ __launch_bounds__(kHeads* kHeadThreads) void PlainAttentionKernel(
    PagedAttentionParams params, int state_floats) {
  WaitForPrevious();
  __shared__ Shared shared;
  const int row = blockIdx.x, kv_head = blockIdx.y;
  const int found = FindSegment(params, row, shared);
  if (found < 0) return;
  const RowList list = ListOf(params, params.segments[found], row, kv_head);

  const int group = params.num_q_heads / params.num_kv_heads;
  const int head = threadIdx.x / kHeadThreads;  // of this CTA
  const int lane = threadIdx.x % kHeadThreads;
  const int group_head = blockIdx.z * (blockDim.x / kHeadThreads) + head;
  const bool has_head = group_head < group;  // threads without one only help to load
  const int q_head = kv_head * group + group_head;
  for (int c = lane; c < params.head_dim; c += kHeadThreads) {
    shared.q[head][c] =
        has_head ? params.q[size_t(row) * params.q_stride + q_head * params.head_dim + c] : 0.0f;
  }
  State state;
  if (has_head && params.first_entry > 0) {
    state = LoadState(params, KeptState(params, state_floats, row, q_head), lane);
  }

  const std::byte* page = list.num_entries > 0 ? list.pages[list.PlaceOf(0)] : nullptr;
  for (int entry = 0; entry < list.num_entries; ++entry) {
    const T* keys = reinterpret_cast<const T*>(page);
    // Asked for one entry ahead: the list's latency hides behind this entry's work.
    if (entry + 1 < list.num_entries) page = list.pages[list.PlaceOf(entry + 1)];
    const int block = list.blocks == nullptr ? params.first_entry + entry : list.blocks[entry];
    const int tokens = min(kBlockTokens, list.position - block * kBlockTokens + 1);
    float score = Score(params, keys, tokens, head, lane, shared) * params.scale;
    if (list.biases != nullptr && lane < tokens) score += list.biases[list.PlaceOf(entry)][lane];
    if (lane >= tokens) score = -INFINITY;
    const float factor = Softmax(score, head, lane, state, shared);
    AddValues(params, keys + size_t(kBlockTokens) * params.head_dim, tokens, factor, head, lane,
              state, shared);
  }
  if (!has_head) return;
  if (params.states != nullptr) {
    KeepState(params, state, lane, KeptState(params, state_floats, row, q_head));
  }
  if (!list.is_last) return;
  switch (params.out_dtype) {
    case DType::kF32:
      return WriteOut<float>(params, row, q_head, lane, state);
    case DType::kBF16:
      return WriteOut<__nv_bfloat16>(params, row, q_head, lane, state);
    case DType::kF16:
      return WriteOut<__half>(params, row, q_head, lane, state);
  }
}

}  // namespace

void RunPlainAttention(const PagedAttentionParams& params, cudaStream_t stream) {
  const int group = params.num_q_heads / params.num_kv_heads;
  const int heads = std::min(group, kHeads);
  LaunchShape shape;
  shape.grid = dim3(params.rows, params.num_kv_heads, (group + heads - 1) / heads);
  shape.block = dim3(heads * kHeadThreads);
  ForElementType(params.dtype, [&]<class T>() {
    LaunchKernel(stream, shape, PlainAttentionKernel<T>, params,
                 AttentionStateFloats(params.head_dim));
  });
}

}  // namespace augur::kernels
