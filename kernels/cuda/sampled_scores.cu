// Sampled attention's first kernel: scores of all keys, and of each tile the largest and the sum of
// its integer weights. K is read once; what is written is 64 scores a tile and query head.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/decode_scores.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/sampled_pages.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

// Of a CTA; with 8 scores took a tenth longer, and 16 leave a thread too few registers.
constexpr int kScoreWarps = 12;
constexpr int kThreads = kScoreWarps * 32;
constexpr int kPlainThreads = 256;

// L of a page for heads g and g + 8.
template <int kHalves>
__device__ inline void SumWeights(const PageScores& scores, const PageMaxima& maxima,
                                  uint64_t (&sums)[kHalves]) {
#pragma unroll
  for (int row = 0; row < kHalves; ++row) {
    const float largest = maxima.of[row];
    uint64_t sum = 0;
    if (largest > -INFINITY) {
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        sum +=
            TileWeight(scores.of[row][i] - largest) + TileWeight(scores.of[row][i + 1] - largest);
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sums[row] = sum;
  }
}

// Lane h keeps what later kernels need of head h's tiles.
struct TileRows {
  uint32_t first;  // tile of the list

  __device__ void BeginList(const SampledCall& call, int list) {
    first = static_cast<uint32_t>(call.RowOf(list, threadIdx.x % 32) * call.stride);
  }
  __device__ void Keep(const SampledCall& call, int entry, float largest, uint64_t sum) const {
    if (static_cast<int>(threadIdx.x % 32) >= call.group()) return;
    call.maxima[first + entry] = largest;
    call.sums[first + entry] = sum;
  }
};

// The scores of this lane's rows of a page.
template <int kHalves>
__device__ inline void KeepScores(const SampledCall& call, int list, int entry,
                                  const PageScores& scores) {
#pragma unroll
  for (int row = 0; row < kHalves; ++row) {
    const int head = threadIdx.x % 32 / 4 + 8 * row;
    if (head >= call.group()) break;
    float* const to = call.ScoresOf(list, head, entry);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float* from = scores.of[row] + i;
      *reinterpret_cast<float4*>(to + PageScores::KeyOf(i)) =
          make_float4(from[0], from[1], from[2], from[3]);
    }
  }
}

template <int kHeadDim>
struct WarpMemory {
  KeyStages<kHeadDim, kScoreWarps> stages;
  PageNote notes[kNotedPages];
};

template <class T, int kHeadDim, int kHalves>
__device__ inline void ScoreRuns(const SampledCall& call, WarpMemory<kHeadDim>& memory) {
  KeyStream<kHeadDim, kScoreWarps> stream(call, memory.stages);
  uint32_t queries[kHeadDim / 16][4];
  PageRun run;
  while (stream.NextRun(&run)) {
    LoadQueries<T, kHeadDim>(call.HeadsOf(run.list), call.group(), queries);
    TileRows tiles;
    tiles.BeginList(call, run.list);
    for (int entry = run.begin; entry < run.end; ++entry) {
      const int at = (entry - run.begin) % kNotedPages;
      if (at == 0) {
        __syncwarp();
        NoteKeys(call, run, entry, memory.notes[threadIdx.x % 32]);
        __syncwarp();
      }
      PageScores scores;
      PageMaxima maxima;
      ScorePage<T, kHeadDim, kHalves>(call.exponent_scale, memory.notes[at], queries, stream,
                                      scores, maxima);
      uint64_t sums[kHalves];
      SumWeights<kHalves>(scores, maxima, sums);
      tiles.Keep(call, entry, ByHead<kHalves>(maxima.of), ByHead<kHalves>(sums));
      KeepScores<kHalves>(call, run.list, entry, scores);
    }
  }
}

// Persistent, a CTA an SM.
template <class T, int kHeadDim, int kHalves>
__global__ __launch_bounds__(kThreads,
                             1) void ScoreSampledPages(const __grid_constant__ SampledCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  WaitForPrevious();
  ScoreRuns<T, kHeadDim, kHalves>(
      call, reinterpret_cast<WarpMemory<kHeadDim>*>(shared_bytes)[threadIdx.x / 32]);
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
__global__ __launch_bounds__(kPlainThreads) void ScoreSampledPlainly(
    const __grid_constant__ SampledCall call) {
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

struct StreamKernel {
  ScoreKernel run;
  int shared_bytes;
};

template <class T, int kHeadDim>
StreamKernel StreamKernelOfGroup(int group) {
  const int bytes = kScoreWarps * sizeof(WarpMemory<kHeadDim>);
  if (group <= 8) return {ScoreSampledPages<T, kHeadDim, 1>, bytes};
  return {ScoreSampledPages<T, kHeadDim, 2>, bytes};
}

template <class T>
StreamKernel StreamKernelOfDim(int head_dim, int group) {
  return head_dim == 64 ? StreamKernelOfGroup<T, 64>(group) : StreamKernelOfGroup<T, 128>(group);
}

StreamKernel StreamKernelOf(DType dtype, int head_dim, int group) {
  return dtype == DType::kF16 ? StreamKernelOfDim<__half>(head_dim, group)
                              : StreamKernelOfDim<__nv_bfloat16>(head_dim, group);
}

}  // namespace

void PrepareSampledScores() {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128}) {
      for (const int group : {8, 16}) {
        const StreamKernel kernel = StreamKernelOf(dtype, head_dim, group);
        AUGUR_CUDA(cudaFuncSetAttribute(kernel.run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        kernel.shared_bytes));
      }
    }
  }
}

void LaunchSampledScores(const SampledCall& call, int num_sms, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const int num_lists = call.num_segments * params.num_kv_heads;
  if (StreamsKeys(params)) {
    const StreamKernel kernel =
        StreamKernelOf(params.dtype, params.head_dim, params.num_q_heads / params.num_kv_heads);
    const auto grid = static_cast<unsigned>(std::min(num_lists * call.most_runs, num_sms));
    LaunchKernel(stream, {dim3(grid), dim3(kThreads), static_cast<size_t>(kernel.shared_bytes)},
                 kernel.run, call);
    return;
  }
  ForElementType(params.dtype, [&]<class T>() {
    LaunchKernel(stream, {dim3(call.stride, num_lists), dim3(kPlainThreads)},
                 ScoreSampledPlainly<T>, call);
  });
}

}  // namespace augur::kernels
