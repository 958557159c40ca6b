#include "kernels/ops/gated_silu.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::GatedSilu(const GatedSiluParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.width > 0 && params.dtype == DType::kF32);
  const auto* gate_up = static_cast<const float*>(params.gate_up);
  auto* out = static_cast<float*>(params.out);
  const size_t width = params.width;
  ForRows(params.rows, int64_t{3} * params.width, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) {
      const float* gate = gate_up + row * 2 * width;
      isa_.gated_silu(gate, gate + width, out + row * width, params.width);
    }
  });
}

}  // namespace augur::kernels
