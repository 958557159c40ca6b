#include <cuda_runtime.h>

#include "kernels/cuda/cuda_devices.h"

namespace augur::kernels {
namespace {

__global__ void WriteOne(int* out) { *out = 1; }

// Asks by running: a binary for sm_90a does not run on another architecture, whatever its number.
bool RunsOurCode(int index) {
  int previous = 0;
  if (cudaGetDevice(&previous) != cudaSuccess || cudaSetDevice(index) != cudaSuccess) return false;
  int* out = nullptr;
  int value = 0;
  bool ran = cudaMalloc(&out, sizeof(int)) == cudaSuccess;
  if (ran) {
    WriteOne<<<1, 1>>>(out);
    ran = cudaMemcpy(&value, out, sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess && value == 1;
    cudaFree(out);
  }
  cudaGetLastError();
  cudaSetDevice(previous);
  return ran;
}

}  // namespace

std::vector<CudaDevice> FindCudaDevices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::vector<CudaDevice> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    CudaDevice device;
    device.index = index;
    device.name = properties.name;
    device.compute_major = properties.major;
    device.compute_minor = properties.minor;
    device.num_sms = properties.multiProcessorCount;
    device.total_bytes = properties.totalGlobalMem;
    device.runs_our_code = RunsOurCode(index);
    devices.push_back(device);
  }
  return devices;
}

std::string DescribeCuda() {
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  std::string line =
      "CUDA runtime " + std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10);
  if (driver == 0) return line + ", no driver";
  const std::vector<CudaDevice> devices = FindCudaDevices();
  if (devices.empty()) return line + ", no device";
  for (const CudaDevice& device : devices) {
    line += ", cuda:" + std::to_string(device.index) + " " + device.name + " (" +
            std::to_string(device.num_sms) + " SMs, " + std::to_string(device.total_bytes >> 30) +
            " GiB" + (device.runs_our_code ? ")" : ", not of this binary's architecture)");
  }
  return line;
}

}  // namespace augur::kernels
