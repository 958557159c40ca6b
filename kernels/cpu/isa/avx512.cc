// The kernels for AVX-512 F, BW, VL, DQ.
#define AUGUR_ISA avx512
#define AUGUR_ISA_LANES 16

#include "kernels/cpu/isa/kernel_table.h"

namespace augur::kernels {
const IsaKernels& Avx512Kernels() { return avx512::kKernels; }
}  // namespace augur::kernels
