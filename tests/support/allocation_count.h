// Bytes that operator new has handed out and not got back, and the most there were: for tests of
// bounds. Linking allocation_count.cc replaces operator new of the whole program.
//
// Thread: any; counts are of all threads together.
#pragma once

#include <cstdint>

namespace augur::tests {

class AllocationPeak {
 public:
  AllocationPeak();  // from here on
  int64_t bytes() const;

 private:
  int64_t before_;
};

}  // namespace augur::tests
