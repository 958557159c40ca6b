#include "engine/model/device_limits.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/batcher.h"

namespace augur::engine {
namespace {

absl::Status NotOnDevice(const char* key, const std::string& expected, const std::string& found) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": expected ", expected,
                                                 " with device: cuda, found ", found,
                                                 "; device: cpu serves it"));
}

// kernels/cuda/sampled_attention.h
absl::Status CheckSampled(const ModelConfig& config, int max_context) {
  constexpr int kMostGroupHeads = 16;
  if (const int heads = config.num_q_heads / config.num_kv_heads; heads > kMostGroupHeads) {
    return NotOnDevice(
        "attention.values.mode",
        absl::StrCat("exact for a model of more than ", kMostGroupHeads, " query heads a KV head"),
        absl::StrCat("sampled for one of ", heads));
  }
  // The scores of a row are kept until it has been drawn from; with what is kept of each tile they
  // take 7/8 of the kernels' scratch.
  constexpr int64_t kMostScores = int64_t{40} << 20;
  const int64_t most_context = kMostScores / config.num_q_heads;
  if (max_context > most_context) {
    return NotOnDevice("context",
                       absl::StrCat("at most ", most_context, " for ", config.num_q_heads,
                                    " query heads that sample their values"),
                       absl::StrCat(max_context));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDeviceServes(const ModelConfig& config, const KvOptions& kv,
                               const ResolvedAttention& attention, int max_context) {
  // Of which one CTA holds a group's (kernels/cuda/place_blocks.cu).
  constexpr int kMostSlots = 1024;
  if (const int slots = std::min(attention.num_slots(), BlocksFor(max_context));
      slots > kMostSlots && kv.residency != ResidencyMode::kDevice) {
    return NotOnDevice("max_top_k_blocks + spare_slots", absl::StrCat("at most ", kMostSlots),
                       absl::StrCat(slots));
  }
  if (attention.values.offered()) {
    if (const absl::Status status = CheckSampled(config, max_context); !status.ok()) return status;
  }
  if (kv.page_check != 0) return NotOnDevice("page_check", "0", absl::StrCat(kv.page_check));
  return absl::OkStatus();
}

}  // namespace augur::engine
