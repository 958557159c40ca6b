#include "engine/kv_options.h"

#include <array>
#include <utility>

namespace augur::engine {
namespace {

constexpr std::array<std::pair<ResidencyMode, const char*>, 3> kNames = {
    {{ResidencyMode::kDevice, "device"},
     {ResidencyMode::kTiered, "tiered"},
     {ResidencyMode::kAuto, "auto"}}};

}  // namespace

std::string NameOf(ResidencyMode mode) {
  for (const auto& [named, name] : kNames) {
    if (named == mode) return name;
  }
  return "unknown";
}

std::optional<ResidencyMode> ResidencyNamed(const std::string& name) {
  for (const auto& [mode, known] : kNames) {
    if (name == known) return mode;
  }
  return std::nullopt;
}

}  // namespace augur::engine
