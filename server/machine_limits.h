// How much memory and how many CPUs this process may use: the machine's, or the container's where
// that is less. Read once at start.
//
// Thread: plain function.
// Failure: what cannot be read does not limit.
#pragma once

#include <cstdint>
#include <string>

namespace augur::server {

struct MachineLimits {
  int64_t memory_bytes = 0;  // smallest of physical memory and the cgroup limits above this process
  int cpus = 1;  // of the affinity mask, less where a cgroup quota gives less; at least 1
  // Whether there is a CUDA device that this binary runs on; asked for `device: auto` alone, since
  // looking takes time and device memory. Null: no. Not set by ReadMachineLimits.
  bool (*has_cuda_device)() = nullptr;
};

// `root` is put before /proc and /sys, for tests.
MachineLimits ReadMachineLimits(const std::string& root = "");

}  // namespace augur::server
