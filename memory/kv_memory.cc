#include "memory/kv_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::memory {

absl::StatusOr<std::unique_ptr<KvMemory>> KvMemory::Create(
    kernels::Backend* backend, const KvMemoryOptions& options,
    std::unique_ptr<TransferEngine> transfers) {
  std::unique_ptr<KvMemory> memory(new KvMemory(backend, options));
  KvPools& pools = memory->pools_;
  const KvLayout& layout = options.layout;
  AUGUR_RETURN_IF_ERROR(memory->AllocateDevice(
      "device pool", "kv_bytes", layout.frame_bytes() * pools.num_frames, &pools.device));
  if (pools.num_host_blocks > 0) {
    const size_t groups = size_t(pools.num_host_blocks) * layout.num_groups();
    AUGUR_RETURN_IF_ERROR(memory->AllocateDevice("staging area", "staging_blocks",
                                                 layout.page_bytes * pools.num_staging_pages,
                                                 &pools.staging));
    AUGUR_RETURN_IF_ERROR(
        memory->AllocateHost("host pool", groups * layout.host_page_bytes(), &pools.host));
    if (layout.fp8_of.has_value()) {
      memory->fp8_ = pools.Fp8PagesOfHost();
      pools.fp8 = &memory->fp8_;
    }
    AUGUR_RETURN_IF_ERROR(memory->AllocateHost("compressed keys of the host pool",
                                               groups * layout.key_bytes, &pools.host_keys));
    if (layout.has_biases()) {
      AUGUR_RETURN_IF_ERROR(memory->AllocateHost("eviction biases of the host pool",
                                                 groups * layout.bias_bytes, &pools.host_biases));
    }
    if (layout.has_value_sums()) {
      AUGUR_RETURN_IF_ERROR(memory->AllocateHost("sums of values of the host pool",
                                                 groups * layout.sum_bytes, &pools.host_sums));
    }
    if (transfers == nullptr) transfers = std::make_unique<CopyThreads>(options.copies);
    memory->transfers_ = std::move(transfers);
  }
  memory->store_.emplace(pools, memory->transfers_.get(), options.page_check);
  return memory;
}

KvMemory::KvMemory(kernels::Backend* backend, const KvMemoryOptions& options)
    : backend_(backend), stats_(options.layout.num_layers) {
  AUGUR_CHECK(options.num_frames > 0);
  pools_.layout = options.layout;
  pools_.num_frames = options.num_frames;
  pools_.num_host_blocks = options.num_host_blocks;
  pools_.num_staging_pages = options.num_staging_pages;
}

KvMemory::~KvMemory() {
  store_.reset();
  transfers_.reset();  // copies under way end before the memory goes
  for (std::byte* pool : {pools_.device, pools_.host, pools_.host_keys, pools_.host_biases,
                          pools_.host_sums, pools_.staging}) {
    if (pool != nullptr) backend_->Free(pool);
  }
}

absl::Status KvMemory::Keep(void* pool, const char* what, const char* knob, size_t bytes,
                            std::byte** to) {
  *to = static_cast<std::byte*>(pool);
  if (*to != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for the ", what, ": ", bytes, " bytes (", knob, ")"));
}

absl::Status KvMemory::AllocateDevice(const char* what, const char* knob, size_t bytes,
                                      std::byte** to) {
  return Keep(backend_->Allocate(bytes), what, knob, bytes, to);
}

absl::Status KvMemory::AllocateHost(const char* what, size_t bytes, std::byte** to) {
  return Keep(backend_->AllocateHost(bytes), what, "host_kv_bytes", bytes, to);
}

}  // namespace augur::memory
