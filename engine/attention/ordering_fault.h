// For tests alone: a tiered step that lacks one edge of the order that keeps it right (README.md of
// this folder), or that has all of them while what would lose the race comes late. Without effect
// where ops run one after another, but for kTwoLists.
#pragma once

#include <cstdint>

namespace augur::engine {

enum class OrderingEdge {
  kNone,
  kListBeforeCopy,      // a copy waits for the list of what it copies
  kCopyBeforeRead,      // attention waits for the copies of its layer
  kTwoLists,            // a layer's choices and copies are not the next layer's
  kReadBeforeHistory,   // a half of the staging area is filled behind the attention that reads it
  kSpillBeforeHistory,  // and behind the writes to the host that read it
  kWriteBeforeFetch,    // a block's slot is given up, and its host page read, behind its write
};

struct OrderingFault {
  OrderingEdge missing = OrderingEdge::kNone;
  // What must come first by this edge is this much later than it might be.
  OrderingEdge delayed = OrderingEdge::kNone;
  int64_t delay_ns = 0;

  int64_t DelayOf(OrderingEdge edge) const { return edge == delayed ? delay_ns : 0; }
};

}  // namespace augur::engine
