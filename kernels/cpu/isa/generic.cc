// The kernels for every x86-64 (std::fma in software where the CPU has none).
#define AUGUR_ISA generic
#define AUGUR_ISA_LANES 4

#include "kernels/cpu/isa/kernel_table.h"

namespace augur::kernels {
const IsaKernels& GenericKernels() { return generic::kKernels; }
}  // namespace augur::kernels
