#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::PlaceBlocks(const PlaceBlocksParams&) { AUGUR_CHECK(!"built"); }
void CpuBackend::OpenTails(const OpenTailsParams&) { AUGUR_CHECK(!"built"); }
void CpuBackend::ListSpills(const ListSpillsParams&) { AUGUR_CHECK(!"built"); }
void CpuBackend::ListPageCopies(const ListPageCopiesParams&) { AUGUR_CHECK(!"built"); }

}  // namespace augur::kernels
