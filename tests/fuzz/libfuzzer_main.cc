// libFuzzer's entry.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_target.h"

// What a target loads once is not the first input's time.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  augur::tests::RunTarget({});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  augur::tests::RunTarget({reinterpret_cast<const char*>(data), size});
  return 0;
}
