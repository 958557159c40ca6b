#include "tests/bench/bench_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/random_weight.h"

namespace augur::bench {

using kernels::DType;

kernels::BackendArray<std::byte> MakeMemory(kernels::Backend* backend, size_t bytes) {
  kernels::BackendArray<std::byte> memory(backend, bytes);
  if (memory.allocated()) return memory;
  std::fprintf(stderr, "augur-bench: no memory for %zu bytes\n", bytes);
  std::exit(2);
}

void StoreNumber(float value, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
    return;
  }
  const uint16_t narrow =
      dtype == DType::kF16 ? kernels::F16FromFloat(value) : kernels::BF16FromFloat(value);
  std::memcpy(to, &narrow, sizeof(narrow));
}

void FillWithRandom(kernels::Backend* backend, std::byte* to, size_t bytes, DType dtype,
                    float scale) {
  std::vector<std::byte> piece(std::min(bytes, size_t{32} << 20));
  const size_t element = kernels::BytesOf(dtype);
  for (size_t i = 0; i < piece.size() / element; ++i) {
    StoreNumber(scale * kernels::RandomWeight(1, i), dtype, &piece[i * element]);
  }
  for (size_t at = 0; at < bytes; at += piece.size()) {
    backend->Copy(to + at, piece.data(), std::min(piece.size(), bytes - at));
  }
  backend->Synchronize();
}

}  // namespace augur::bench
