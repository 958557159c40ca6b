// libFuzzer's entry.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  augur::tests::RunTarget({reinterpret_cast<const char*>(data), size});
  return 0;
}
