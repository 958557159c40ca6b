// Keys of a call's lists on their way through warps, and what a warp makes of a page: scores of the
// group's query heads. Device code of sampled_scores.cu and sampled_shared.cu.
//
// Work goes by runs of a list's entries, cut by the list's length alone. A warp has a run at a time
// and takes the next one that nobody has: what it computes of a run is a function of the run. It
// asks for its own keys, some half pages ahead and across the ends of runs, so no warp waits for
// another.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/decode_page_ring.h"
#include "kernels/cuda/decode_scores.h"
#include "kernels/cuda/mbarrier.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/value_weights.h"

namespace augur::kernels {

inline constexpr int kHalfTokens = kBlockTokens / 2;

// Consecutive entries of one list.
struct PageRun {
  int list;
  int index;  // of the list's runs
  int begin;  // entries [begin, end)
  int end;
};

// What is on its way to one of the kWarps warps of a CTA, one CTA an SM, in half pages: the next
// ones are asked for while a page is still being worked on. 128 to 192 KiB are on their way to an
// SM; 64 KiB would do to keep it at its share of the bandwidth, were they never late.
template <int kHeadDim, int kWarps>
struct KeyStages {
  static constexpr int kHalfBytes = kHalfTokens * kHeadDim * 2;
  static constexpr int kStages = (192 << 10) / kWarps / kHalfBytes;
  // Runs that are asked for before the one that is worked on ends: one a half page, and some.
  static constexpr int kRunsAhead = 8;
  static_assert(kStages < kRunsAhead);

  struct alignas(128) Half {
    std::byte bytes[kHalfBytes];
  };
  Half halves[kStages];
  uint64_t full[kStages];      // mbarriers: the half has landed
  int runs[kRunsAhead];        // taken, not yet worked on
  const std::byte* pages[32];  // of the last one, or of 32 of its entries
};

// One warp's; every function is the whole warp's.
template <int kHeadDim, int kWarps>
class KeyStream {
 public:
  using Stages = KeyStages<kHeadDim, kWarps>;

  __device__ KeyStream(const SampledCall& call, Stages& stages) : call_(call), stages_(stages) {
    if (threadIdx.x % 32 == 0) {
      for (int stage = 0; stage < Stages::kStages; ++stage) InitBarrier(&stages.full[stage], 1);
      FenceBeforeBulkCopies();
    }
    __syncwarp();
    // The first runs go round the SMs, so that few fill all of them.
    next_run_ = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    for (int stage = 0; stage < Stages::kStages; ++stage) Ask(stage, true);
  }

  // The next run of this warp; false: there are no more.
  __device__ bool NextRun(PageRun* run) {
    if (runs_begun_ == runs_taken_) return false;
    *run = RunAt(stages_.runs[runs_begun_++ % Stages::kRunsAhead]);
    return true;
  }

  // The next half page, as it lies in memory.
  __device__ const std::byte* Wait() {
    WaitForBarrier(&stages_.full[stage_], parity_);
    __syncwarp();
    return stages_.halves[stage_].bytes;
  }

  // It has been read; asks for another one. `from_all`: a number that needed every load of this
  // half, and never has the bits of kNever. The copy waits for it: an instruction that follows
  // loads from shared memory does not wait for them, and neither does an arrival at a barrier
  // (README.md).
  __device__ void Release(float from_all) {
    __syncwarp();
    Ask(stage_, __float_as_uint(from_all) != kNever);
    if (++stage_ < Stages::kStages) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  __device__ PageRun RunAt(int index) const {
    PageRun run;
    run.list = index / call_.most_runs;
    run.index = index % call_.most_runs;
    const int entries = call_.ScoredEntries(run.list), of_run = EntriesOfRun(entries);
    run.begin = run.index * of_run;
    run.end = min(entries, run.begin + of_run);
    return run;
  }

  // Takes the next run that holds anything.
  __device__ bool TakeRun() {
    const int num_runs = call_.num_lists() * call_.most_runs;
    while (next_run_ < num_runs) {
      const int index = next_run_;
      int next = 0;
      if (threadIdx.x % 32 == 0) next = atomicAdd(call_.runs_taken, 1);
      next_run_ = __shfl_sync(~0u, next, 0) + kWarps * gridDim.x;
      const PageRun run = RunAt(index);
      ahead_halves_ = 2 * (run.end - run.begin);
      if (ahead_halves_ <= 0) continue;
      if (threadIdx.x % 32 == 0) stages_.runs[runs_taken_ % Stages::kRunsAhead] = index;
      __syncwarp();
      ++runs_taken_;
      ahead_half_ = 0;
      return true;
    }
    return false;
  }

  // Where the next 32 pages lie.
  __device__ void FindPages() {
    const PageRun run = RunAt(stages_.runs[(runs_taken_ - 1) % Stages::kRunsAhead]);
    const int lane = threadIdx.x % 32, entry = run.begin + ahead_half_ / 2 + lane;
    __syncwarp();
    if (entry < run.end) {
      stages_.pages[lane] = call_.KeysOf(call_.SegmentOf(run.list), run.list, entry);
    }
    __syncwarp();
  }

  // Of a NaN that no instruction makes.
  static constexpr uint32_t kNever = 0x7fbadbad;

  // Starts the copy of the next half page, if there is one, to a place that `is_free` (it is).
  __device__ void Ask(int stage, bool is_free) {
    if (ahead_half_ >= ahead_halves_ && !TakeRun()) return;
    if (ahead_half_ % 64 == 0) FindPages();
    if (threadIdx.x % 32 == 0 && is_free) {
      const uint32_t barrier = SharedAddress(&stages_.full[stage]);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                   "r"(Stages::kHalfBytes)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(stages_.halves[stage].bytes)),
          "l"(stages_.pages[ahead_half_ / 2 % 32] + ahead_half_ % 2 * Stages::kHalfBytes),
          "r"(Stages::kHalfBytes), "r"(barrier), "l"(PolicyReadOnce())
          : "memory");
    }
    __syncwarp();
    ++ahead_half_;
  }

  const SampledCall& call_;
  Stages& stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;
  int runs_begun_ = 0, runs_taken_ = 0;
  int next_run_ = 0;      // index of all lists' runs
  int ahead_half_ = 0;    // that is asked for next
  int ahead_halves_ = 0;  // of the run that was taken last
};

// Scores of a page, in powers of two. Lane 4 g + t has those of query heads g and g + 8 with keys
// 8 t to 8 t + 7 of each half, in order.
struct PageScores {
  float of[2][16];

  // Of value i.
  static __device__ int KeyOf(int i) { return i / 8 * kHalfTokens + threadIdx.x % 4 * 8 + i % 8; }
};

// The largest score of heads g and g + 8; NaN where one is.
struct PageMaxima {
  float of[2];
};

// Products of half a page. A key tile's column c is key 8 (c / 2) + 2 n + c % 2, so that a lane has
// neighbours.
template <class T, int kHeadDim>
__device__ inline void ScoreHalf(const std::byte* keys, int half, float scale,
                                 const uint32_t (&queries)[kHeadDim / 16][4], PageScores& scores) {
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int key = g / 2 * 8 + 2 * n + g % 2;
    float of[4];
    ScoreEightKeys<T, kHeadDim>(keys + key * kHeadDim * 2, queries, scale, of);
    scores.of[0][8 * half + 2 * n] = of[0];
    scores.of[0][8 * half + 2 * n + 1] = of[1];
    scores.of[1][8 * half + 2 * n] = of[2];
    scores.of[1][8 * half + 2 * n + 1] = of[3];
  }
}

// Biases, and nothing from key `visible` on, in half a page; then the maxima over both what they
// were and this half. kHalves: 2, or 1 for groups of up to 8, whose heads g + 8 there are not.
template <int kHalves>
__device__ inline void FinishHalf(const float* bias, int visible, int half, PageScores& scores,
                                  PageMaxima& maxima) {
#pragma unroll
  for (int row = 0; row < kHalves; ++row) {
    float* of = scores.of[row] + 8 * half;
    if (bias != nullptr || visible < kBlockTokens) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = PageScores::KeyOf(8 * half + i);
        if (bias != nullptr) of[i] = fmaf(bias[key], 1.44269504f, of[i]);
        if (key >= visible) of[i] = -INFINITY;
      }
    }
    float largest = of[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) largest = MaxOrNan(largest, of[i]);
    largest = MaxOrNan(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = MaxOrNan(largest, __shfl_xor_sync(~0u, largest, 2));
    maxima.of[row] = half == 0 ? largest : MaxOrNan(maxima.of[row], largest);
  }
}

// Of a head's value that the lanes of row g hold in register `row`: lane h and lane h + 16 get that
// of head h.
template <int kHalves, class Number, int kCount>
__device__ inline Number ByHead(const Number (&of)[kCount]) {
  const int lane = threadIdx.x % 32, from = lane % 8 * 4;
  const Number low = __shfl_sync(~0u, of[0], from);
  if constexpr (kHalves == 1) return low;
  const Number high = __shfl_sync(~0u, of[kHalves - 1], from);
  return lane / 8 % 2 == 0 ? low : high;
}

// What a warp has to know of a page besides its keys, in shared memory: read for kNotedPages of a
// run at once, so that no page waits for its list.
struct PageNote {
  const std::byte* values;  // as what follows, of kShared alone
  const float* value_sums;  // null: none
  int32_t* rows;            // where to say how many were drawn; null: nowhere
  const float* bias;        // null: none
  uint32_t offset;
  int visible;  // keys that the row attends to
};
inline constexpr int kNotedPages = 32;  // a lane each

// Of this lane's page, `first` + lane.
__device__ inline void NoteKeys(const SampledCall& call, const PageRun& run, int first,
                                PageNote& note) {
  const SampledSegment& segment = call.SegmentOf(run.list);
  const int entry = first + static_cast<int>(threadIdx.x % 32);
  if (entry >= run.end) return;
  note.visible = call.VisibleKeys(segment, run.list, entry);
  note.bias = call.BiasesOf(segment, run.list, entry);
}

// A page by a warp, whose keys pass by in `stream`.
template <class T, int kHeadDim, int kHalves, int kWarps>
__device__ inline void ScorePage(float exponent_scale, const PageNote& note,
                                 const uint32_t (&queries)[kHeadDim / 16][4],
                                 KeyStream<kHeadDim, kWarps>& stream, PageScores& scores,
                                 PageMaxima& maxima) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    ScoreHalf<T, kHeadDim>(stream.Wait(), half, exponent_scale, queries, scores);
    FinishHalf<kHalves>(note.bias, note.visible, half, scores, maxima);
    stream.Release(maxima.of[0]);
  }
}

}  // namespace augur::kernels
