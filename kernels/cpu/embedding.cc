#include "kernels/ops/embedding.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::Embedding(const EmbeddingParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.hidden > 0);
  const auto* table = static_cast<const std::byte*>(params.table);
  const size_t entry_bytes = params.hidden * BytesOf(params.table_dtype);
  ForRows(params.rows, params.hidden, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) {
      float* out = params.out + size_t(row) * params.hidden;
      if (params.ids[row] < 0 || params.ids[row] >= params.vocab) {
        std::fill_n(out, params.hidden, std::numeric_limits<float>::quiet_NaN());
        continue;
      }
      isa_.widen(params.table_dtype, table + params.ids[row] * entry_bytes, out, params.hidden);
      if (params.scale == 1.0f) continue;
      for (int c = 0; c < params.hidden; ++c) out[c] *= params.scale;
    }
  });
}

}  // namespace augur::kernels
