// A backend's memory for benches, and what they fill it with.
#pragma once

#include <cstddef>

#include "kernels/backend_array.h"
#include "kernels/dtype.h"

namespace augur::bench {

// As BackendArray, where a shortage ends the bench: exit 2 with a line on stderr.
kernels::BackendArray<std::byte> MakeMemory(kernels::Backend* backend, size_t bytes);

// An element of dtype.
void StoreNumber(float value, kernels::DType dtype, std::byte* to);

// Random numbers in [-scale, scale), the same 32 MiB again and again: zeros would draw less power
// and run faster. Done when this returns.
void FillWithRandom(kernels::Backend* backend, std::byte* to, size_t bytes, kernels::DType dtype,
                    float scale = 1.0f);

}  // namespace augur::bench
