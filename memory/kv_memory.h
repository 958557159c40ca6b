// The memory behind KV and everything that moves it: pools, transfer engine and store, made
// together at start and destroyed together.
//
// Thread: Create and the destructor anywhere; the store is the engine thread's. Ownership: all of
// it; the backend outlives it, and so does the clock. Failure: RESOURCE_EXHAUSTED naming pool, size
// and knob.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "memory/copy_threads.h"
#include "memory/kv_pools.h"
#include "memory/kv_store.h"
#include "memory/residency_stats.h"

namespace augur::memory {

struct KvMemoryOptions {
  KvLayout layout;
  int num_frames = 0;
  int num_host_blocks = 0;    // 0: no host pool and no copy threads
  int num_staging_pages = 0;  // on the device
  CopyThreadsOptions copies;
  int page_check = 0;  // one spilled page in that many is hashed and compared; 0: none
};

class KvMemory {
 public:
  // `transfers`: what moves the pages; null: copy threads as in the options.
  static absl::StatusOr<std::unique_ptr<KvMemory>> Create(
      kernels::Backend* backend, const KvMemoryOptions& options,
      std::unique_ptr<TransferEngine> transfers = nullptr);
  ~KvMemory();
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;

  KvStore* store() { return &*store_; }
  ResidencyStats* stats() { return &stats_; }
  // Null without a host pool.
  const TransferEngine* transfers() const { return transfers_.get(); }

 private:
  KvMemory(kernels::Backend* backend, const KvMemoryOptions& options);
  static absl::Status Keep(void* pool, const char* what, const char* knob, size_t bytes,
                           std::byte** to);
  absl::Status AllocateDevice(const char* what, const char* knob, size_t bytes, std::byte** to);
  absl::Status AllocateHost(const char* what, size_t bytes, std::byte** to);

  kernels::Backend* const backend_;
  ResidencyStats stats_;
  KvPools pools_;
  kernels::Fp8Pages fp8_;
  std::unique_ptr<TransferEngine> transfers_;
  std::optional<KvStore> store_;
};

}  // namespace augur::memory
