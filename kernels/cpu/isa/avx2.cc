// The kernels for AVX2, FMA, F16C.
#define AUGUR_ISA avx2
#define AUGUR_ISA_LANES 8

#include "kernels/cpu/isa/kernel_table.h"

namespace augur::kernels {
const IsaKernels& Avx2Kernels() { return avx2::kKernels; }
}  // namespace augur::kernels
