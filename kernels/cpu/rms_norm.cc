#include "kernels/ops/rms_norm.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::RmsNorm(const RmsNormParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.hidden > 0 && params.out_dtype == DType::kF32);
  auto* out = static_cast<float*>(params.out);
  ForRows(params.rows, params.hidden, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) {
      const size_t source = params.row_ids == nullptr ? row : params.row_ids[row];
      isa_.rms_norm(params.x + source * params.hidden, params.weight,
                    out + size_t(row) * params.hidden, params.hidden, params.epsilon);
    }
  });
}

}  // namespace augur::kernels
