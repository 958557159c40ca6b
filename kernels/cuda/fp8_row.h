// Values of a row of an fp8 page (kernels/fp8_page.h), for kernels that read such pages in place.
// Device code.
#pragma once

#include <cstdint>

#include "kernels/fp8_page.h"
#include "kernels/kv_page.h"

namespace augur::kernels {

// kVector values of row `token` from `column` on. half: K or V of the page.
template <int kVector>
__device__ inline void LoadFp8(const uint8_t* half, int head_dim, int token, int column,
                               float (&values)[kVector]) {
  const float scale = fp8::UnpackingScale(half[kBlockTokens * head_dim + token]);
  const uint8_t* codes = half + token * head_dim + column;
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = fp8::FloatFromE4M3(codes[i]) * scale;
}

}  // namespace augur::kernels
