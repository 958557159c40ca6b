#include "engine/pool_fit.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/batcher.h"

namespace augur::engine {
namespace {

// A group's slots of a sequence that reads all blocks at every step: the one still growing and the
// one before, whose write may be under way.
constexpr int kDenseSlots = 2;

std::string DescribeShortage(const memory::KvPools& pools, const memory::KvDemand& demand,
                             int blocks) {
  return absl::StrCat(memory::DescribeFootprint(pools.layout, demand, blocks), "; the pools have ",
                      pools.num_frames, " frames (kv_bytes) and ", pools.num_host_blocks,
                      " host blocks (host_kv_bytes)");
}

}  // namespace

int64_t MostTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.stopping.max_tokens;
}

int MostBlocks(const Request& request) { return BlocksFor(MostTokens(request)); }

bool MayBeTiered(const Request& request, const EngineOptions& options) {
  if (options.residency == ResidencyMode::kTiered) return true;
  return options.residency == ResidencyMode::kAuto &&
         request.attention.decode != AttentionPolicy::kDense;
}

memory::KvDemand DemandOf(const Request& request, const EngineOptions& options,
                          memory::Residency residency) {
  // A prompt's last chunk can be one row, which selects from slots as decode does.
  const bool selects = request.attention.selects();
  return {.residency = residency,
          .selects = selects,
          .num_slots = selects ? options.num_slots : kDenseSlots,
          .partial_keys = request.attention.decode == AttentionPolicy::kInfinigen};
}

bool FitsPools(const Request& request, const EngineOptions& options, const memory::KvPools& pools,
               memory::Residency residency) {
  const memory::KvFootprint footprint =
      memory::FootprintOf(pools.layout, DemandOf(request, options, residency), MostBlocks(request));
  return footprint.frames() <= pools.num_frames && footprint.host_blocks <= pools.num_host_blocks;
}

absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const memory::KvPools& pools) {
  const auto most = std::min(kMaxChoices, static_cast<uint32_t>(options.max_batch));
  if (request.num_choices < 1 || request.num_choices > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", most, " choices, found ", request.num_choices));
  }
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = request.stopping.max_tokens;
  const int64_t total = prompt + max_tokens;
  const std::string numbers = absl::StrCat("prompt has ", prompt, " tokens and max_tokens is ",
                                           max_tokens, ": together ", total);
  if (total > options.max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat(numbers, ", the context is ", options.max_context, " tokens"));
  }
  const int blocks = BlocksFor(total);
  const auto fits = [&](memory::Residency residency) {
    return FitsPools(request, options, pools, residency);
  };
  const bool on_device = options.residency != ResidencyMode::kTiered;
  if (on_device && fits(memory::Residency::kDevice)) return absl::OkStatus();
  const bool tiered = MayBeTiered(request, options);
  if (tiered && fits(memory::Residency::kTiered)) return absl::OkStatus();
  const memory::Residency last = tiered ? memory::Residency::kTiered : memory::Residency::kDevice;
  return absl::InvalidArgumentError(absl::StrCat(
      numbers, " need ", DescribeShortage(pools, DemandOf(request, options, last), blocks)));
}

}  // namespace augur::engine
