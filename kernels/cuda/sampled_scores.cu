// Sampled attention's first kernel: scores of all keys, and of each tile the largest and the sum of
// its integer weights. K is read once; what is written is 64 scores a tile and query head.
#include <cmath>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/decode_page_ring.h"
#include "kernels/cuda/decode_scores.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

// A warp takes whole pages, so nothing is shared between warps but the ring.
constexpr int kScoreWarps = 8;
constexpr int kThreads = (kScoreWarps + 1) * 32;  // and one warp that loads
constexpr int kPlainThreads = 256;

template <int kHeadDim>
using KeyRing = PageRing<kHeadDim, 1>;

// The lists' entries one behind the other.
struct EntryTable {
  int offsets[kMaxSampledLists + 1];  // entries of all lists before

  // By one whole warp.
  __device__ void Sum(int num_lists) {
    const int lane = threadIdx.x % 32;
    int before = 0;
    for (int first = 0; first < num_lists; first += 32) {
      const int list = first + lane;
      const int entries = list < num_lists ? offsets[list] : 0;
      int sum = entries;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0u, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (list < num_lists) offsets[list] = before + sum - entries;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) offsets[num_lists] = before;
  }

  // The list that holds entry `index` of all.
  __device__ int ListOf(int index, int num_lists) const {
    int low = 0, high = num_lists;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (offsets[middle] <= index ? low : high) = middle;
    }
    return low;
  }
};

template <int kHeadDim>
struct ScoreMemory {
  // A place of the ring is always the same warp's: it has seen the phase before the one it waits
  // for.
  static_assert(KeyRing<kHeadDim>::kStages % kScoreWarps == 0);
  KeyRing<kHeadDim> ring;
  EntryTable table;
};

// NaN where one of the two is.
__device__ inline float MaxOrNan(float a, float b) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
  return largest;
}

// The key in column c of key tile n is 16 (c / 2) + 2 n + c % 2: so lane 4 g + t has keys 16 t to
// 16 t + 15 of rows g and g + 8, in order.
__device__ inline int KeyOf(int tile, int column) {
  return 16 * (column / 2) + 2 * tile + column % 2;
}

// What is kept of one row of a tile: 16 scores of this lane, which holds keys from 16 t on. All
// lanes call it; those without a row (`is_kept` false) store nothing.
__device__ inline void KeepRow(const SampledCall& call, const float (&scores)[16], bool is_kept,
                               int list, int head, int entry) {
  const int t = threadIdx.x % 4;
  float largest = scores[0];
#pragma unroll
  for (int i = 1; i < 16; ++i) largest = MaxOrNan(largest, scores[i]);
  largest = MaxOrNan(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = MaxOrNan(largest, __shfl_xor_sync(~0u, largest, 2));
  uint64_t sum = 0;
  if (is_kept && largest > -INFINITY) {
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += TileWeight(scores[i] - largest);
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (!is_kept) return;
  float4* to = reinterpret_cast<float4*>(call.ScoresOf(list, head, entry) + 16 * t);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = make_float4(scores[4 * i], scores[4 * i + 1], scores[4 * i + 2], scores[4 * i + 3]);
  }
  if (t != 0) return;
  const size_t row = call.RowOf(list, head);
  call.maxima[row * call.stride + entry] = largest;
  call.sums[row * call.stride + entry] = sum;
}

// One page, whole, by one warp.
template <class T, int kHeadDim>
__device__ inline void ScorePage(const SampledCall& call, int list, int entry,
                                 const uint32_t (&queries)[kHeadDim / 16][4],
                                 const typename KeyRing<kHeadDim>::Place& place,
                                 KeyRing<kHeadDim>& ring) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const SampledSegment& segment = call.SegmentOf(list);
  const int visible = call.VisibleKeys(segment, list, entry);
  const float* bias = nullptr;
  if (segment.biases != nullptr) {
    bias = segment.biases[call.attention.biases_offset + call.PlaceOf(segment, list, entry)];
  }
  const auto& page = ring.WaitFull(place);
  float scores[8][4];
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    ScoreEightKeys<T, kHeadDim>(page.bytes + KeyRing<kHeadDim>::KeyOffset(KeyOf(n, g)), queries,
                                call.exponent_scale, scores[n]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (8 * half >= call.group()) break;
    float row[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int key = 16 * t + i;
      float score = scores[i / 2][2 * half + i % 2];
      if (bias != nullptr) score = fmaf(bias[key], 1.44269504f, score);
      row[i] = key < visible ? score : -INFINITY;
    }
    const int head = g + 8 * half;
    const bool is_kept = head < call.group();
    KeepRow(call, row, is_kept, list, is_kept ? head : 0, call.attention.first_entry + entry);
  }
  // Not before the scores have been used: released right behind the loads, pages of a ring that
  // came round were overwritten while they were read (README.md).
  ring.Release(place);
}

template <class T, int kHeadDim>
__device__ inline void ScorePages(const SampledCall& call, int begin, int end,
                                  ScoreMemory<kHeadDim>& shared) {
  const SampledAttentionParams& params = call.attention;
  const int warp = threadIdx.x / 32, num_lists = call.num_lists();
  typename KeyRing<kHeadDim>::Place place;
  for (int i = 0; i < warp; ++i) place.Advance();
  uint32_t queries[kHeadDim / 16][4];
  int list = -1;
  for (int index = begin + warp; index < end; index += kScoreWarps) {
    if (list < 0 || shared.table.offsets[list + 1] <= index) {
      list = shared.table.ListOf(index, num_lists);
      const float* heads = params.q + size_t(call.SegmentOf(list).row) * params.q_stride +
                           size_t(call.KvHeadOf(list)) * call.group() * kHeadDim;
      LoadQueries<T, kHeadDim>(heads, call.group(), queries);
    }
    ScorePage<T, kHeadDim>(call, list, index - shared.table.offsets[list], queries, place,
                           shared.ring);
    for (int i = 0; i < kScoreWarps; ++i) place.Advance();
  }
}

template <int kHeadDim>
__device__ inline void LoadPages(const SampledCall& call, int begin, int end,
                                 ScoreMemory<kHeadDim>& shared) {
  const int lane = threadIdx.x % 32, num_lists = call.num_lists();
  const uint64_t policy = PolicyReadOnce();
  // This lane's page of the 32 from `first` on; asked for while those before are being issued.
  const auto lane_page = [&](int first) -> const std::byte* {
    const int index = first + lane;
    if (index >= end) return nullptr;
    const int list = shared.table.ListOf(index, num_lists);
    return call.KeysOf(call.SegmentOf(list), list, index - shared.table.offsets[list]);
  };
  typename KeyRing<kHeadDim>::Place place;
  const std::byte* next = lane_page(begin);
  for (int first = begin; first < end; first += 32) {
    const std::byte* pages = next;
    next = lane_page(first + 32);
    for (int i = 0; i < 32 && first + i < end; ++i) {
      const auto address = __shfl_sync(~0u, reinterpret_cast<uint64_t>(pages), i);
      shared.ring.Load(place, reinterpret_cast<const std::byte*>(address), policy);
      place.Advance();
    }
  }
}

// Persistent: each CTA takes an equal share of all pages.
template <class T, int kHeadDim>
__global__ __launch_bounds__(kThreads, 1) void ScoreSampledPages(const SampledCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<ScoreMemory<kHeadDim>*>(shared_bytes);
  if (threadIdx.x == 0) shared.ring.Init(/*num_reading_warps=*/1);
  WaitForPrevious();
  const int num_lists = call.num_lists();
  for (int list = threadIdx.x; list < num_lists; list += kThreads) {
    shared.table.offsets[list] = call.ScoredEntries(list);
  }
  __syncthreads();
  if (threadIdx.x < 32) shared.table.Sum(num_lists);
  __syncthreads();
  const int64_t total = shared.table.offsets[num_lists];
  const int begin = static_cast<int>(total * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x);
  if (threadIdx.x / 32 < kScoreWarps) {
    ScorePages<T, kHeadDim>(call, begin, end, shared);
  } else {
    LoadPages<kHeadDim>(call, begin, end, shared);
  }
}

// Of one tile whose scores are in `scores`, by one warp.
__device__ inline void MeasureTile(const SampledCall& call, const float* scores, size_t row,
                                   int entry) {
  const int lane = threadIdx.x % 32;
  const float a = scores[lane], b = scores[lane + 32];
  float largest = MaxOrNan(a, b);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = MaxOrNan(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  uint64_t sum = 0;
  if (largest > -INFINITY) sum = uint64_t{TileWeight(a - largest)} + TileWeight(b - largest);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  if (lane != 0) return;
  call.maxima[row * call.stride + entry] = largest;
  call.sums[row * call.stride + entry] = sum;
}

// Any shape, a CTA a page: one chain a key in the order of elements. Where a list has scores but no
// keys, tiles are measured alone.
template <class T>
__global__ __launch_bounds__(kPlainThreads) void ScoreSampledPlainly(const SampledCall call) {
  __shared__ float tile[kTileRows][kBlockTokens];
  WaitForPrevious();
  const SampledAttentionParams& params = call.attention;
  const int list = blockIdx.y, group = call.group(), head_dim = params.head_dim;
  const SampledSegment& segment = call.SegmentOf(list);
  const int entries = call.ListedEntries(list);
  const int key = threadIdx.x % kBlockTokens, warp = threadIdx.x / 32;
  for (int entry = blockIdx.x; entry < entries; entry += gridDim.x) {
    const int kept = params.first_entry + entry;
    if (segment.keys != nullptr) {
      const int visible = call.VisibleKeys(segment, list, entry);
      const T* page = reinterpret_cast<const T*>(call.KeysOf(segment, list, entry));
      const float* heads = params.q + size_t(segment.row) * params.q_stride +
                           size_t(call.KvHeadOf(list)) * group * head_dim;
      for (int head = threadIdx.x / kBlockTokens; head < group;
           head += kPlainThreads / kBlockTokens) {
        float score = -INFINITY;
        if (key < visible) {
          float sum = 0.0f;
          for (int c = 0; c < head_dim; ++c) {
            sum = fmaf(heads[head * head_dim + c], ToFloat(page[key * head_dim + c]), sum);
          }
          score = sum * call.exponent_scale;
          if (segment.biases != nullptr) {
            const int64_t place = call.PlaceOf(segment, list, entry);
            score = fmaf(segment.biases[params.biases_offset + place][key], 1.44269504f, score);
          }
        }
        tile[head][key] = score;
        call.ScoresOf(list, head, kept)[key] = score;
      }
      __syncthreads();
      for (int head = warp; head < group; head += kPlainThreads / 32) {
        MeasureTile(call, tile[head], call.RowOf(list, head), kept);
      }
      __syncthreads();
    } else {
      for (int head = warp; head < group; head += kPlainThreads / 32) {
        const size_t row = call.RowOf(list, head);
        MeasureTile(call, call.ScoresOf(list, head, kept), row, kept);
      }
    }
  }
}

using ScoreKernel = void (*)(SampledCall);

struct RingKernel {
  ScoreKernel run;
  size_t shared_bytes;
};

template <class T>
RingKernel RingKernelOfDim(int head_dim) {
  switch (head_dim) {
    case 64:
      return {ScoreSampledPages<T, 64>, sizeof(ScoreMemory<64>)};
    default:
      return {ScoreSampledPages<T, 128>, sizeof(ScoreMemory<128>)};
  }
}

RingKernel RingKernelOf(DType dtype, int head_dim) {
  return dtype == DType::kF16 ? RingKernelOfDim<__half>(head_dim)
                              : RingKernelOfDim<__nv_bfloat16>(head_dim);
}

// Which kernel: by the shape alone, so that a row's bits do not depend on its company.
bool IsStreamed(const SampledAttentionParams& params) {
  return params.dtype != DType::kF32 && (params.head_dim == 64 || params.head_dim == 128);
}

}  // namespace

void PrepareSampledScores() {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128}) {
      const RingKernel kernel = RingKernelOf(dtype, head_dim);
      AUGUR_CUDA(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(kernel.shared_bytes)));
    }
  }
}

void LaunchSampledScores(const SampledCall& call, int num_sms, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const int num_lists = call.num_segments * params.num_kv_heads;
  const int64_t pages = int64_t{num_lists} * call.stride;
  // Scores that the caller keeps may be given instead of keys: only the plain kernel looks.
  if (IsStreamed(params) && params.scores == nullptr) {
    const RingKernel kernel = RingKernelOf(params.dtype, params.head_dim);
    const auto grid = static_cast<unsigned>(pages < num_sms ? pages : num_sms);
    LaunchKernel(stream, {dim3(grid), dim3(kThreads), kernel.shared_bytes}, kernel.run, call);
    return;
  }
  ForElementType(params.dtype, [&]<class T>() {
    LaunchKernel(stream, {dim3(call.stride, num_lists), dim3(kPlainThreads)},
                 ScoreSampledPlainly<T>, call);
  });
}

}  // namespace augur::kernels
