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
// kMostEntries it would save nothing more on partial results (of a run of 32 pages of 32 KiB, at
// most 8 KiB) but leave SMs idle at the end. kMaxRuns bounds scratch: beyond 512K tokens runs
// become longer again.
inline constexpr int kUsualRuns = 64;
inline constexpr int kFewestEntries = 4;
inline constexpr int kMostEntries = 32;
inline constexpr int kMaxRuns = 256;

__host__ __device__ constexpr int CeilDivide(int64_t value, int64_t by) {
  return static_cast<int>((value + by - 1) / by);
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
static_assert(RunEntries(512) == 8 && RunEntries(2048) == 32 && RunEntries(1 << 20) == 4096);

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

  // Fills `offsets`; by one whole warp.
  __device__ void Sum(int num_lists) {
    const int lane = threadIdx.x % 32;
    int before = 0;
    for (int first = 0; first < num_lists; first += 32) {
      const int list = first + lane;
      const int entries = list < num_lists ? ends[list].entries : 0;
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
  __device__ RunWalk(const RunTable& table, int num_lists, int cta, int num_ctas)
      : table_(table), num_lists_(num_lists), list_(num_lists) {
    const int64_t total = table.offsets[num_lists];
    const int begin = CeilDivide(cta * total, num_ctas);
    end_ = CeilDivide((cta + 1) * total, num_ctas);
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
