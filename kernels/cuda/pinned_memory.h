// The host's share of KV memory: one large piece that the device reads and writes at the host's own
// addresses, near the device where the machine has several memory nodes.
//
// Thread: any; Create starts threads of its own for the first touch and ends them. Ownership: RAII;
// nothing may be copying to or from it when it is destroyed. Failure: Create's error line says what
// was asked for, which limit was met and which setting to change. No CUDA headers needed here.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace augur::kernels {

struct PinnedMemoryOptions {
  size_t bytes = 0;
  int device = 0;
  // Pages of 2 MiB that the administrator has set aside (vm.nr_hugepages). Without: ordinary
  // memory, of which the system may make large pages by itself.
  bool huge_pages = false;
  int max_touch_threads = 16;  // more do not zero memory faster
};

class PinnedMemory {
 public:
  // What is registered at once. A copy by the copy engine must not cross a multiple of it (counted
  // from data()); kernels may.
  static constexpr size_t kChunkBytes = size_t{64} << 30;

  // Zeroed. Null, with a line for the person at the console in *error. Takes about a second for
  // each few GiB, most of it the system's.
  static std::unique_ptr<PinnedMemory> Create(const PinnedMemoryOptions& options,
                                              std::string* error);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return data_; }  // aligned to a page of the system at least
  size_t bytes() const { return bytes_; }
  // The memory node that was asked for; -1 when the device's is not known, or refused.
  int memory_node() const { return memory_node_; }

 private:
  PinnedMemory() = default;
  bool Map(const PinnedMemoryOptions& options, std::string* error);
  void PreferDeviceNode(int device);
  void Touch(int max_threads);
  bool Register(const PinnedMemoryOptions& options, std::string* error);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;      // bytes_ in whole pages
  size_t registered_bytes_ = 0;  // of the front, in chunks
  int memory_node_ = -1;
};

}  // namespace augur::kernels
