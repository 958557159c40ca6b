// Which 64-token blocks a segment's rows fall into.
//
// Pure functions. A segment has at least one row.
#pragma once

#include "kernels/kv_page.h"
#include "kernels/ops/segment.h"

namespace augur::engine {

inline int FirstBlock(const kernels::Segment& rows) {
  return rows.first_position / kernels::kBlockTokens;
}
inline int EndBlock(const kernels::Segment& rows) {
  return (rows.first_position + rows.num_rows - 1) / kernels::kBlockTokens + 1;
}
// Blocks of the sequence that are full once the rows are in.
inline int CompleteBlocks(const kernels::Segment& rows) {
  return (rows.first_position + rows.num_rows) / kernels::kBlockTokens;
}

}  // namespace augur::engine
