// What the CUDA runtime sees on this machine, for --version and start-up messages. Built only in
// the cuda preset.
//
// Thread: any. Failure: none; a machine without a driver is described as such (the same binary runs
// there on the CPU).
#pragma once

#include <string>
#include <vector>

namespace augur::kernels {

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  size_t total_bytes = 0;
  bool runs_our_code = false;  // a kernel of this binary's architecture ran there
};

// Empty when there is no driver or no device.
std::vector<CudaDevice> FindCudaDevices();

// One line: the runtime's version and each device, or why there is none.
std::string DescribeCuda();

}  // namespace augur::kernels
