#pragma once
#include <cstdint>

#include "kernels/host_device.h"

namespace augur::kernels {

// The slots of a sampled row, as PlaceSegment has them.
struct ValueReadsSegment {
  int row = -1;                 // -1: the segment is left out
  float* slot_costs = nullptr;  // [num_kv_heads][slot_stride]
  int slot_stride = 0;
};

// Behind sampled attention, and before the slots are placed anew, on a lane or not: adds to each
// slot that holds keys alone what reading its block's rows of values at the source has cost, the
// larger of their bytes and one place.
struct CountValueReadsParams {
  const ValueReadsSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  // By the segments' rows.
  const int32_t* entry_rows = nullptr;    // [rows][num_kv_heads][selection_stride]: read of each
  const int32_t* counts = nullptr;        // [rows][num_kv_heads]: entries of each list
  const int32_t* source_slots = nullptr;  // as entry_rows, from PlaceBlocks
  int selection_stride = 0;
  float row_cost = 0.0f;    // of one row's bytes
  float place_cost = 0.0f;  // of the rows of one block, at least
  int64_t slots_offset = 0;
  uint64_t* source_rows = nullptr;  // [1]: rows read at sources, added to
};

AUGUR_HOST_DEVICE inline float ValueReadCost(const CountValueReadsParams& params, int32_t rows) {
  const float bytes = params.row_cost * static_cast<float>(rows);
  return bytes > params.place_cost ? bytes : params.place_cost;
}

}  // namespace augur::kernels
