// What this device's memory gives a kernel that only reads: the ceiling of whatever is bound by
// memory. For benches.
//
// Thread: any, on the current device, which should do nothing else meanwhile. Ownership: 2 GiB of
// device memory while it runs. Failure: 0 where there is not that much; else as launch.h.
#pragma once

namespace augur::kernels {

// The median of five passes over memory that is far larger than any cache.
double MeasureReadBytesPerSecond();

}  // namespace augur::kernels
