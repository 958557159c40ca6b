#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/fp8_page.h"
#include "kernels/host_device.h"
#include "kernels/kv_page.h"

namespace augur::kernels {

// Attention of single rows (generated tokens) that reads all keys of a list of blocks and some rows
// of values: out = sum of w_j V_j, where w_j is random with mean p_j, the row's exact softmax over
// the listed tokens up to its own position, for every estimator but kLargestRemainder.
//
// A tile is one entry of the list (a block of 64 tokens). Weights and counts are the integers of
// kernels/value_weights.h; offsets come from kernels/philox.h by seed, choice, layer, head,
// position and block id. A row's bits depend on its list, its draws' key and its state alone.
enum class ValueEstimator {
  kIid,               // S thresholds for each query head over its whole list
  kStratified,        // one threshold in each of S strata
  kSystematic,        // one offset for S equidistant thresholds, over one global distribution
  kProportional,      // the same in two passes: tiles get their share, offsets chained through them
  kLargestRemainder,  // shares rounded by largest remainder, as published; biased
  kFlash,             // max(1, floor(S / tiles)) in each tile, weighed by the tile's mass
  kShared,            // one set of rows for all query heads of a kv head, in one pass
};

enum class ValueBudget {
  kDraws,  // S draws for each query head; kShared: rates that sum to S rows without their bound of
           // 1
  kRows,   // as many draws as make S distinct rows for each kv head, in expectation
};

inline constexpr int kMaxValueSamples = 65536;

// What kShared keeps between the steps of a sequence for each (layer, kv head), in this order:
// whether it holds anything (0 or 1), the rate lambda, and for each query head of the group the
// base-2 logarithm of its softmax normaliser over its anchor. All zero: before the first step,
// which predicts the anchor to be all there is, at lambda = S: at least as many rows as any later
// one.
//
// The anchor is the same sum over the first entry and the last kAnchorLast of the list alone, whose
// keys are known before the others': a step's normaliser is predicted as its own anchor times what
// the last step's normaliser was over that step's, or little more than it was before, where that is
// less: to predict too little reads more rows, to predict too much leaves large weights on few.
// From token to token the normaliser itself moves by a factor of 8.6 (root mean square, bundled
// model at 7K tokens of text), over the anchor by 1.6.
//
// Where biases leave nothing of a head's anchor, the prediction is the least there is, so that rows
// are drawn at the highest rate, and the state stays as it was, as it does where a score is NaN.
inline constexpr int kAnchorLast = 4;
inline constexpr float kNoLogAnchor = -std::numeric_limits<float>::max();
AUGUR_HOST_DEVICE constexpr int ValueStateFloats(int group_heads) { return 2 + group_heads; }

struct SampledSegment {
  int row = -1;      // of q and out; -1: the segment is left out
  int position = 0;  // of its token
  // [num_kv_heads][list_stride]: keys (values) of each entry, [64][head_dim] of dtype each. The two
  // halves of a page need not lie together: values may be in host memory, in fp8 pages or not,
  // while keys are not. Values null: they follow the keys, as in a page.
  const std::byte* const* keys = nullptr;
  const std::byte* const* values = nullptr;
  // [num_kv_heads][list_stride], ascending. Null: entry e is block e.
  const int32_t* blocks = nullptr;
  const int32_t* counts = nullptr;  // [num_kv_heads] entries, at least 1; null: up to `position`'s
  const float* const* biases = nullptr;  // [num_kv_heads][list_stride], 64 floats each; null: none
  // [num_kv_heads][list_stride]: sum of the values of the entry's tokens up to `position`, head_dim
  // floats: the control variate of kShared. Null: none (unbiased all the same).
  const float* const* value_sums = nullptr;
  // kShared: [num_kv_heads][ValueStateFloats], read, and what the next token shall read, written.
  // next_state null: state itself; apart, a row may be run again.
  float* state = nullptr;
  float* next_state = nullptr;
  int list_stride = 0;
  int samples = 0;  // S, from 1 to kMaxValueSamples; 0: SampledAttentionParams::samples
  uint64_t seed = 0;
  uint32_t choice_index = 0;
  // [num_kv_heads][list_stride]: distinct rows read of each entry. Null: not wanted.
  int32_t* entry_rows = nullptr;
};

// What was drawn for one segment, over all its heads.
struct SampledCounts {
  int64_t draws = 0;     // with repetitions
  int64_t rows = 0;      // distinct for a query head
  int64_t distinct = 0;  // distinct for a kv head: rows of V that were read
};

// Where pinned host memory lies, that values may be in: a device reads rows from there by few CTAs.
struct HostValues {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;  // begin == end: there are none
};

struct SampledAttentionParams {
  const float* q = nullptr;  // [rows, num_q_heads * head_dim], rows q_stride apart, rotated
  void* out = nullptr;       // [rows, num_q_heads * head_dim] of out_dtype, dense
  const SampledSegment* segments = nullptr;  // [num_segments]
  SampledCounts* counts = nullptr;           // [num_segments]; null: not wanted
  SampledCounts* totals = nullptr;           // [1], to which all counts are added; likewise
  int num_segments = 0;
  int rows = 0;
  int q_stride = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;  // of keys and values
  float scale = 1.0f;
  DType out_dtype = DType::kF32;  // the CPU's: kF32
  int layer = 0;
  int samples = 0;  // of segments that name none
  ValueEstimator estimator = ValueEstimator::kShared;
  ValueBudget budget = ValueBudget::kDraws;
  // Entries of the longest list, at most: what the host knows where it cannot read the segments.
  // It sizes scratch and grids; no bits depend on it.
  int max_entries = std::numeric_limits<int>::max();
  // Added to every segment's lists, in entries, and to both states, in floats: those of several
  // layers that lie behind each other share their segments. Where values are null, keys_offset is
  // both's.
  int64_t keys_offset = 0;
  int64_t values_offset = 0;
  int64_t biases_offset = 0;
  int64_t sums_offset = 0;
  int64_t state_offset = 0;
  // Instead of the generator's words, where tests enumerate offsets. Negative: the generator's.
  int64_t forced_offset = -1;

  // A long list whose keys pass by in several calls: those with `values` null score entries
  // [first_entry, end_entry) of the only segment (its keys, blocks and biases begin at first_entry;
  // counts tell how many of them there are), the last one, with `keys` null, draws from all of
  // them.
  int first_entry = 0;
  float* scores = nullptr;  // [num_q_heads][scores_stride], scores_stride >= 64 * all entries
  size_t scores_stride = 0;
  HostValues host = {};
  Fp8Pages fp8 = {};  // values may lie in such: at the second half of one
};

}  // namespace augur::kernels
