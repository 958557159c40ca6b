// Where the lists of single rows are cut into runs, and which CTA takes which runs. Device code of
// decode_attention.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/kv_page.h"
#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

// (segment, kv head) pairs of one launch, whose table lies in shared memory: 256 rows of 8 kv heads
// in 24 KiB.
inline constexpr int kMaxLists = 2048;

// How a list is cut, by its length alone. About kUsualRuns runs: with 2 kv heads one row fills 128
// of an H200's 132 SMs. Shorter than kFewestEntries a run would cost more in partial results and
// latency than other SMs could save: 4 pages on half the SMs take as long as 2 on all. Longer than
// kMostEntries it would save nothing more, as runs of one CTA join (kJoinedRuns). kMaxRuns bounds
// scratch: beyond 256K tokens runs become longer again.
inline constexpr int kUsualRuns = 64;
inline constexpr int kFewestEntries = 4;
inline constexpr int kMostEntries = 16;
inline constexpr int kMaxRuns = 256;

// A list's result is put together in a fixed order: runs k * kJoinedRuns and following are folded,
// each into those before it. A CTA that has the first of them folds its own as it goes and leaves
// one partial result, where the merge kernel would fold several: writing them costs far more than
// their share of the traffic. The bits are the same either way.
inline constexpr int kJoinedRuns = 8;

__host__ __device__ constexpr int CeilDivide(int value, int by) {
  return static_cast<int>((static_cast<unsigned>(value) + by - 1) / by);
}

__host__ __device__ constexpr int RunEntries(int entries) {
  int run = CeilDivide(entries, kUsualRuns);
  if (run < kFewestEntries) run = kFewestEntries;
  if (run > kMostEntries) run = kMostEntries;
  const int fewest = CeilDivide(entries, kMaxRuns);
  return run < fewest ? fewest : run;
}

__host__ __device__ constexpr int NumRuns(int entries) {
  return CeilDivide(entries, RunEntries(entries));
}

// Of any list of up to max_entries (at least 1). NumRuns itself is no bound: it falls where a run
// becomes an entry longer.
constexpr int MaxRuns(int max_entries) {
  if (max_entries <= kUsualRuns * kFewestEntries) return CeilDivide(max_entries, kFewestEntries);
  if (max_entries <= kUsualRuns * kMostEntries) return kUsualRuns;
  const int runs = CeilDivide(max_entries, kMostEntries);
  return runs < kMaxRuns ? runs : kMaxRuns;
}

static_assert(NumRuns(0) == 0 && NumRuns(4) == 1 && NumRuns(5) == 2 && NumRuns(257) == 52);
static_assert(RunEntries(512) == 8 && RunEntries(2048) == 16 && RunEntries(1 << 20) == 4096);

struct ListEnd {
  int entries;    // that the row attends to: up to its own block
  int last_keys;  // of the last entry: fewer than a block's where that is the row's own block
};

// No entries for a segment that is left out.
__device__ inline ListEnd EndOfList(const AttentionSegment& segment, int kv_head) {
  if (segment.rows.num_rows == 0) return {0, kBlockTokens};
  if (segment.rows.num_rows > 1 || segment.biases != nullptr) __trap();  // not served
  const int own_block = segment.rows.first_position / kBlockTokens;
  const int own_keys = segment.rows.first_position % kBlockTokens + 1;
  if (segment.blocks == nullptr) return {own_block + 1, own_keys};
  const int count = segment.counts[kv_head];
  if (count <= 0) return {0, kBlockTokens};
  const int32_t* blocks = segment.blocks + int64_t{kv_head} * segment.list_stride;
  int begin = 0, end = count;  // the first block behind the row's lies in [begin, end]
  if (blocks[count - 1] <= own_block) begin = count;
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (blocks[middle] <= own_block) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  const bool has_own = begin > 0 && blocks[begin - 1] == own_block;
  return {begin, has_own ? own_keys : kBlockTokens};
}

// The lists of a launch, list segment * num_kv_heads + kv_head, in shared memory.
struct RunTable {
  ListEnd ends[kMaxLists];
  int offsets[kMaxLists + 1];  // entries of all lists before
  int share;                   // entries of a CTA, about

  // Fills `offsets` and `share`; by one whole warp.
  __device__ void Sum(int num_lists, int num_ctas) {
    const int lane = threadIdx.x % 32;
    int before = 0, longest = 0;
    for (int first = 0; first < num_lists; first += 32) {
      const int list = first + lane;
      const int entries = list < num_lists ? ends[list].entries : 0;
      int sum = entries;
      longest = max(longest, entries);
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0u, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (list < num_lists) offsets[list] = before + sum - entries;
      before += __shfl_sync(~0u, sum, 31);
    }
    longest = __reduce_max_sync(~0u, longest);
    if (lane != 0) return;
    offsets[num_lists] = before;
    // Whole runs of the longest list, if that is not much more: then shares of lists of equal
    // length begin where runs begin to be joined, and leave few partial results.
    const int even = CeilDivide(before, num_ctas);
    const int run = RunEntries(longest);
    const int rounded = run > 0 ? CeilDivide(even, run) * run : even;
    share = rounded - even <= even / 8 ? rounded : even;
  }
};

// Some consecutive entries of one list: what a CTA attends to at a time.
struct ListRun {
  int list;
  int index;        // of num_runs
  int num_runs;     // of the list
  int first_entry;  // of num_entries, at least 1
  int num_entries;
  int last_keys;  // of the last entry, that the row attends to
};

// The runs of one CTA: those whose first entry lies in its share of all entries. A thread walks on
// its own; threads of a CTA see the same runs.
class RunWalk {
 public:
  __device__ RunWalk(const RunTable& table, int num_lists, int cta)
      : table_(table), num_lists_(num_lists), list_(num_lists) {
    const int64_t total = table.offsets[num_lists];
    const int64_t share_begin = int64_t{cta} * table.share;
    const int begin = static_cast<int>(min(share_begin, total));
    end_ = static_cast<int>(min(share_begin + table.share, total));
    if (begin >= end_) return;
    int low = 0, high = num_lists;  // the list that holds entry `begin` lies in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (table.offsets[middle] <= begin ? low : high) = middle;
    }
    list_ = low;
    index_ = CeilDivide(begin - table.offsets[low], RunEntries(table.ends[low].entries));
  }

  // False behind the last run.
  __device__ bool Next(ListRun* run) {
    for (; list_ < num_lists_; ++list_, index_ = 0) {
      const ListEnd end = table_.ends[list_];
      const int run_entries = RunEntries(end.entries);
      const int first = index_ * run_entries;
      if (first >= end.entries) continue;
      if (table_.offsets[list_] + first >= end_) return false;
      const bool is_last = end.entries - first <= run_entries;
      run->list = list_;
      run->index = index_++;
      run->num_runs = CeilDivide(end.entries, run_entries);
      run->first_entry = first;
      run->num_entries = is_last ? end.entries - first : run_entries;
      run->last_keys = is_last ? end.last_keys : kBlockTokens;
      return true;
    }
    return false;
  }

 private:
  const RunTable& table_;
  const int num_lists_;
  int list_;
  int index_ = 0;
  int end_ = 0;  // the first entry, of all, of the next CTA's share
};

}  // namespace augur::kernels
