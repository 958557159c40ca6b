// Where KV lives and how it moves: knobs of the tiers. Filled by server/server_config, checked
// there and by the model loader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/attention/copy_quota.h"
#include "kernels/dtype.h"
#include "memory/copy_threads.h"

namespace augur::engine {

enum class ResidencyMode {
  kDevice,  // all KV in the device pool
  kTiered,  // the truth in the host pool, the device a cache of it
  kAuto,    // the device while it lasts; then sequences that select move to the host
};

std::string NameOf(ResidencyMode mode);  // "device", "tiered", "auto"
std::optional<ResidencyMode> ResidencyNamed(const std::string& name);

struct KvOptions {
  ResidencyMode residency = ResidencyMode::kDevice;
  // Frames and, where there is a host pool, the staging area. 0, on a device: nine tenths of what
  // the weights leave of its memory.
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;               // unused under kDevice
  std::optional<kernels::DType> dtype;  // of KV pages; unset: the checkpoint's
  // Host pages in fp8 (kernels/fp8_page.h): half the bytes over the link. Rows are rounded to that
  // when they are appended, in every sequence. Not under kDevice.
  bool host_fp8 = false;
  // Working set of a prefill chunk beyond slots, a multiple of 16 and at least the largest budget;
  // 0: 64, or that budget.
  int staging_blocks = 0;
  bool prefetch = true;  // false: blocks chosen ahead are fetched when their layer needs them
  CopyQuotaOptions copy_ctas = {};  // on a device: CTAs that fetch pages in a step
  int recall_every = 64;            // steps between measurements of the Forecast's recall; 0: never
  int page_check = 0;               // one spilled page in that many is hashed and compared; 0: none
  memory::CopyThreadsOptions copies;
};

}  // namespace augur::engine
