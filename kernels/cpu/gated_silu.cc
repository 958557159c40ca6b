#include "kernels/ops/gated_silu.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::GatedSilu(const GatedSiluParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.width > 0);
  const size_t width = params.width;
  ForRows(params.rows, int64_t{3} * params.width, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) {
      const float* gate = params.gate_up + row * 2 * width;
      isa_.gated_silu(gate, gate + width, params.out + row * width, params.width);
    }
  });
}

}  // namespace augur::kernels
