#include "kernels/ops/stamp.h"

#include <chrono>

#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::Stamp(const StampParams& params) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *params.at_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace augur::kernels
