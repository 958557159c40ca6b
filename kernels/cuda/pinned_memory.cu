#include <cuda_runtime.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <thread>

#include "kernels/check.h"
#include "kernels/cuda/pinned_memory.h"

namespace augur::kernels {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kSmallPageBytes = 4096;
// MAP_HUGE_2MB of linux/mman.h: the size's logarithm above bit 26.
constexpr int kMapHuge2Mb = 21 << 26;

size_t RoundUp(size_t value, size_t to) { return (value + to - 1) / to * to; }

std::string GiB(size_t bytes) {
  constexpr size_t kGiB = size_t{1} << 30;
  const std::string part = std::to_string(bytes % kGiB * 100 / kGiB);
  return std::to_string(bytes / kGiB) + "." + (part.size() < 2 ? "0" : "") + part + " GiB";
}

std::string LockLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "RLIMIT_MEMLOCK unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "RLIMIT_MEMLOCK unlimited";
  return "RLIMIT_MEMLOCK " + GiB(limit.rlim_cur) + " (" + std::to_string(limit.rlim_cur) +
         " bytes; ulimit -l, or LimitMEMLOCK= of the service)";
}

std::string FreeHugePages() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  size_t pages = 0;
  if (!(file >> pages)) return "none known to the system";
  return std::to_string(pages) + " free (" + GiB(pages * kHugePageBytes) + ")";
}

// -1 when the system does not say.
int MemoryNodeOfDevice(int device) {
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != cudaSuccess) {
    cudaGetLastError();
    return -1;
  }
  std::string name = bus_id;
  // CUDA writes hex digits large, the system small.
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

}  // namespace

std::unique_ptr<PinnedMemory> PinnedMemory::Create(const PinnedMemoryOptions& options,
                                                   std::string* error) {
  AUGUR_CHECK(options.bytes > 0 && options.max_touch_threads > 0);
  std::unique_ptr<PinnedMemory> memory(new PinnedMemory);
  if (!memory->Map(options, error)) return nullptr;
  // Before the first touch, which is when a page gets its place.
  memory->PreferDeviceNode(options.device);
  memory->Touch(options.max_touch_threads);
  if (!memory->Register(options, error)) return nullptr;
  return memory;
}

PinnedMemory::~PinnedMemory() {
  // Errors are not ours to report here: a device that broke has been reported already.
  for (size_t at = 0; at < registered_bytes_; at += kChunkBytes) cudaHostUnregister(data_ + at);
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
}

bool PinnedMemory::Map(const PinnedMemoryOptions& options, std::string* error) {
  bytes_ = options.bytes;
  mapped_bytes_ = RoundUp(bytes_, options.huge_pages ? kHugePageBytes : kSmallPageBytes);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (options.huge_pages) flags |= MAP_HUGETLB | kMapHuge2Mb;
  void* data = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) {
    const std::string reason = strerror(errno);
    *error = "host_kv_bytes: " + GiB(bytes_) + " cannot be had from the system (" + reason + ")";
    *error += options.huge_pages ? "; pages of 2 MiB: " + FreeHugePages() +
                                       "; raise vm.nr_hugepages, do without them, or lower "
                                       "host_kv_bytes"
                                 : "; lower host_kv_bytes";
    return false;
  }
  data_ = static_cast<std::byte*>(data);
  // A wish: fewer pages to touch and to register. Copies are as fast either way.
  if (!options.huge_pages) madvise(data_, mapped_bytes_, MADV_HUGEPAGE);
  return true;
}

void PinnedMemory::PreferDeviceNode(int device) {
  // MPOL_PREFERRED of linux/mempolicy.h. Not MPOL_BIND: where the node is full, memory of another
  // one is slower, but the kernel would end the process.
  constexpr int kPreferred = 1;
  constexpr int kBitsOfWord = 8 * sizeof(unsigned long);
  constexpr int kMaxNodes = 1024;  // of the mask; as many as Linux can have
  const int node = MemoryNodeOfDevice(device);
  if (node < 0 || node >= kMaxNodes - 1) return;
  unsigned long mask[kMaxNodes / kBitsOfWord] = {};
  mask[node / kBitsOfWord] = 1ul << (node % kBitsOfWord);
  // Often forbidden in containers, and then memory lies where it lies.
  if (syscall(SYS_mbind, data_, mapped_bytes_, kPreferred, mask, kMaxNodes, 0) == 0) {
    memory_node_ = node;
  }
}

void PinnedMemory::Touch(int max_threads) {
  // A piece for each thread at least this large: below, starting threads costs more.
  constexpr size_t kMinShare = size_t{64} << 20;
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t threads =
      std::min({cores, static_cast<size_t>(max_threads), RoundUp(bytes_, kMinShare) / kMinShare});
  // Whole huge pages, so that no two threads fault in the same one.
  const size_t share = RoundUp(RoundUp(mapped_bytes_, threads) / threads, kHugePageBytes);
  std::vector<std::thread> workers;
  for (size_t i = 0; i < threads; ++i) {
    const size_t begin = std::min(mapped_bytes_, i * share);
    const size_t end = std::min(mapped_bytes_, begin + share);
    workers.emplace_back([this, begin, end] {
      for (size_t at = begin; at < end; at += kSmallPageBytes) data_[at] = std::byte{0};
    });
  }
  for (std::thread& worker : workers) worker.join();
}

bool PinnedMemory::Register(const PinnedMemoryOptions& options, std::string* error) {
  const std::string what = "host_kv_bytes: " + GiB(bytes_) +
                           " cannot be pinned for cuda:" + std::to_string(options.device);
  int same_addresses = 0;
  cudaError_t status = cudaDeviceGetAttribute(
      &same_addresses, cudaDevAttrCanUseHostPointerForRegisteredMem, options.device);
  if (status == cudaSuccess && same_addresses == 0) {
    *error = what + ": this device cannot read host memory at the host's addresses";
    return false;
  }
  // Portable: of every device, whichever is current here.
  while (status == cudaSuccess && registered_bytes_ < mapped_bytes_) {
    const size_t chunk = std::min(kChunkBytes, mapped_bytes_ - registered_bytes_);
    status = cudaHostRegister(data_ + registered_bytes_, chunk, cudaHostRegisterPortable);
    if (status == cudaSuccess) registered_bytes_ += chunk;
  }
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // not sticky
  *error = what + ": " + cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ") after " +
           GiB(registered_bytes_) + "; " + LockLimit() + "; lower host_kv_bytes or raise the limit";
  return false;
}

}  // namespace augur::kernels
