// Device code of sample_tokens.cu: the last token that top_k or top_p keeps, without a sort of the
// row. The cut's place is narrowed by passes that measure (count or weigh) the tokens above seven
// pivots at once, until the tokens left are few enough to be sorted in shared memory, or all equal.
#pragma once

#include "kernels/cuda/sampling_row.h"

namespace augur::kernels {

// Eight parts a pass: more would cost registers, and a pass more than it saves.
constexpr int kPivots = 7;
// Two compare-exchanges a thread and step of the sort: some 5 us, as much as a pass over the row.
constexpr int kCandidates = 4 * kSamplingThreads;

struct CutScratch {
  double warp_weights[kPivots][kSamplingWarps];
  int warp_counts[kPivots][kSamplingWarps];
  double weights[kPivots];
  int counts[kPivots];
  int num_candidates;
  uint64_t candidates[kCandidates];  // ~key, then id: ascending is the order of tokens
  WalkScratch walk;
};

// What is kept of the tokens that `limit` keeps: the shortest start that measures `wanted`, which
// is less than all of them do.
struct CutRule {
  Cut limit;
  int count = 0;  // of tokens that limit keeps
  double wanted = 0.0;
  bool by_weight = false;  // otherwise by number
};

// The cut lies at a key in [low, high): tokens at high and above measure less than is wanted, those
// at low and above do not.
struct Bracket {
  uint32_t low, high;
  int count_low, count_high;  // of tokens at or above
  double above;               // measure of tokens at high or above
};

// Falling distances from the maximum that the first pass tries: in units of the temperature for a
// nucleus, of which the last token has some 1/100 to 1/10000 of the highest probability; in logits
// for the k-th token, of which the distance is anywhere in these for a trained model.
__device__ inline float FirstDistance(int pivot, bool by_weight) {
  constexpr float kNucleus[kPivots] = {1.0f, 2.5f, 4.0f, 5.5f, 7.0f, 9.0f, 12.0f};
  constexpr float kLogits[kPivots] = {2.0f, 4.0f, 6.0f, 8.0f, 11.0f, 15.0f, 20.0f};
  return by_weight ? kNucleus[pivot] : kLogits[pivot];
}

// Falling. Even passes split the keys, which ends in at most eleven of them; odd ones split the
// logits, which parts a usual row faster: half of all floats lie around zero.
__device__ inline void MakePivots(const LogitRow& row, const CutRule& rule, const Bracket& bracket,
                                  int pass, uint32_t (&pivots)[kPivots]) {
  const float low = LogitOfKey(bracket.low), high = LogitOfKey(bracket.high);
  const bool split_logits = pass % 2 == 1 && isfinite(low) && isfinite(high);
  const float unit = rule.by_weight ? row.temperature : 1.0f;
#pragma unroll
  for (int j = 0; j < kPivots; ++j) {
    const int part = kPivots - j;  // of kPivots + 1
    if (pass == 0 || split_logits) {
      const float logit = pass == 0
                              ? row.max - unit * FirstDistance(j, rule.by_weight)
                              : low + (high - low) * (static_cast<float>(part) / (kPivots + 1));
      pivots[j] = min(max(OrderedKey(logit), bracket.low), bracket.high - 1);
    } else {
      const uint64_t size = bracket.high - bracket.low;
      pivots[j] = bracket.low + static_cast<uint32_t>(size * part / (kPivots + 1));
    }
  }
}

// scratch.weights (by weight only) and scratch.counts: of the tokens at or above each pivot.
template <int kVector, bool kByWeight>
__device__ void MeasureAbove(const LogitRow& row, const Cut& limit,
                             const uint32_t (&pivots)[kPivots], CutScratch& scratch) {
  double weights[kPivots] = {};
  int counts[kPivots] = {};
  // Four loads ahead: the sums take the registers that more would need.
  ForSpan<kVector, 4>(row, [&](float logit, int id) {
    const uint32_t key = OrderedKey(logit);
    if (key < pivots[kPivots - 1] || !limit.Keeps(key, id)) return;
    const double weight = kByWeight ? row.Weight(logit) : 0.0f;
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      if (key < pivots[j]) continue;
      if constexpr (kByWeight) weights[j] += weight;
      ++counts[j];
    }
  });
#pragma unroll
  for (int j = 0; j < kPivots; ++j) {
    const int count = __reduce_add_sync(~0u, counts[j]);
    const double weight = kByWeight ? WarpSum(weights[j]) : 0.0;
    if (LaneIndex() != 0) continue;
    scratch.warp_counts[j][WarpIndex()] = count;
    scratch.warp_weights[j][WarpIndex()] = weight;
  }
  __syncthreads();
  static_assert(kPivots <= kSamplingWarps && kSamplingWarps <= kWarp);
  if (const int j = WarpIndex(); j < kPivots) {
    const bool has_warp = LaneIndex() < kSamplingWarps;
    const int count = __reduce_add_sync(~0u, has_warp ? scratch.warp_counts[j][LaneIndex()] : 0);
    const double weight = WarpSum(has_warp ? scratch.warp_weights[j][LaneIndex()] : 0.0);
    if (LaneIndex() == 0) {
      scratch.counts[j] = count;
      scratch.weights[j] = weight;
    }
  }
  __syncthreads();
}

// One pass. Every thread comes to the same bracket.
template <int kVector>
__device__ void Narrow(const LogitRow& row, const CutRule& rule, int pass, CutScratch& scratch,
                       Bracket& bracket) {
  uint32_t pivots[kPivots];
  MakePivots(row, rule, bracket, pass, pivots);
  if (rule.by_weight) {
    MeasureAbove<kVector, true>(row, rule.limit, pivots, scratch);
  } else {
    MeasureAbove<kVector, false>(row, rule.limit, pivots, scratch);
  }
  bool is_reached = false;
#pragma unroll
  for (int j = 0; j < kPivots; ++j) {
    const double measure = rule.by_weight ? scratch.weights[j] : scratch.counts[j];
    if (is_reached) continue;
    if (measure >= rule.wanted) {
      is_reached = true;
      bracket.low = pivots[j];
      bracket.count_low = scratch.counts[j];
    } else {
      bracket.high = pivots[j];
      bracket.count_high = scratch.counts[j];
      bracket.above = measure;
    }
  }
  // No barrier: scratch.weights and counts are written again only behind MeasureAbove's first.
}

// The bracket's tokens, sorted. They are at most kCandidates.
template <int kVector>
__device__ int SortCandidates(const LogitRow& row, const CutRule& rule, const Bracket& bracket,
                              CutScratch& scratch) {
  if (threadIdx.x == 0) scratch.num_candidates = 0;
  __syncthreads();
  ForSpan<kVector, 4>(row, [&](float logit, int id) {
    const uint32_t key = OrderedKey(logit);
    if (key < bracket.low || key >= bracket.high || !rule.limit.Keeps(key, id)) return;
    const int place = atomicAdd(&scratch.num_candidates, 1);  // any place: they are sorted
    if (place < kCandidates) scratch.candidates[place] = (uint64_t{~key} << 32) | uint32_t(id);
  });
  __syncthreads();
  const int count = min(scratch.num_candidates, kCandidates);
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + threadIdx.x; i < size; i += kSamplingThreads) scratch.candidates[i] = ~0ull;
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < size / 2; pair += kSamplingThreads) {
        const int i = 2 * pair - (pair & (distance - 1));
        const uint64_t a = scratch.candidates[i], b = scratch.candidates[i + distance];
        if ((a > b) != ((i & run) == 0)) continue;
        scratch.candidates[i] = b;
        scratch.candidates[i + distance] = a;
      }
    }
  }
  __syncthreads();
  return count;
}

// Called by all threads; all get the result.
template <int kVector>
__device__ Cut FindCut(const LogitRow& row, const CutRule& rule, CutScratch& scratch) {
  Bracket bracket{rule.limit.key, OrderedKey(row.max) + 1, rule.count, 0, 0.0};
  for (int pass = 0;
       bracket.high - bracket.low > 1 && bracket.count_low - bracket.count_high > kCandidates;
       ++pass) {
    Narrow<kVector>(row, rule, pass, scratch, bracket);
  }
  // x > target just where x >= wanted.
  const double target = __longlong_as_double(__double_as_longlong(rule.wanted) - 1);
  const auto measure = [&](uint32_t key) {
    return rule.by_weight ? static_cast<double>(row.Weight(LogitOfKey(key))) : 1.0;
  };
  if (bracket.count_low - bracket.count_high <= kCandidates) {
    const int count = SortCandidates<kVector>(row, rule, bracket, scratch);
    const int last = FirstBeyond(0, count, bracket.above, target, scratch.walk, [&](int i) {
      return measure(~static_cast<uint32_t>(scratch.candidates[i] >> 32));
    });
    if (last < 0) return rule.limit;
    const uint64_t token = scratch.candidates[last];
    return {~static_cast<uint32_t>(token >> 32), static_cast<int32_t>(token)};
  }
  // Very many tokens of one logit: of these the lowest ids are kept.
  const int id = FirstBeyond(0, row.vocab, bracket.above, target, scratch.walk, [&](int i) {
    const uint32_t key = OrderedKey(row.logits[i]);
    return key == bracket.low && rule.limit.Keeps(key, i) ? measure(key) : 0.0;
  });
  return id < 0 ? rule.limit : Cut{bracket.low, id};
}

}  // namespace augur::kernels
