// What this machine can do at best, to put beside what the kernels do (augur-bench).
//
// Thread: starts and joins its own threads. Failure: an ISA that the CPU lacks is a CHECK.
#pragma once

#include <cstddef>

#include "kernels/backend.h"

namespace augur::kernels {

// Float32 multiply-adds, two operations each, all threads together; registers only. Takes about 0.1
// s.
double MeasureFmaPeakGflops(int threads, CpuIsa isa);

// Reading `bytes` of memory, shared out among the threads, several times over; 1e9 bytes a second.
double MeasureReadBandwidthGBps(int threads, size_t bytes);

}  // namespace augur::kernels
