// A fuzz target: one function from bytes to whether they were accepted, which ends the process
// where an invariant is broken. Built twice: by the preset `fuzz` with libFuzzer, and by every
// other with replay_main.cc, which runs the corpus through it. tests/fuzz/README.md.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace augur::tests {

// Defined by each target.
bool RunTarget(std::string_view input);

}  // namespace augur::tests

#define FUZZ_REQUIRE(condition)                                                    \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)
