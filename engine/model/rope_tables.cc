#include "engine/model/rope_tables.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"

namespace augur::engine {

absl::StatusOr<RopeTables> RopeTables::Create(kernels::Backend* backend, const RopeScaling& rope,
                                              int head_dim, int max_context) {
  RopeTables tables;
  RopeAngles& angles = tables.angles_;
  angles.covers[0] = std::min(max_context, rope.short_context());
  angles.first[1] = angles.covers[0];
  angles.covers[1] = max_context > rope.short_context() ? max_context : 0;
  const int half = head_dim / 2;
  std::vector<float> cos(size_t(angles.covers[0] + angles.covers[1]) * half), sin(cos.size());
  for (int variant = 0; variant < kRopeVariants; ++variant) {
    const std::vector<double> frequencies = InverseFrequencies(rope, head_dim, variant);
    for (int position = 0; position < angles.covers[variant]; ++position) {
      for (int i = 0; i < half; ++i) {
        const double angle = position * frequencies[i];
        const size_t at = size_t(angles.first[variant] + position) * half + i;
        cos[at] = static_cast<float>(rope.attention_factor * std::cos(angle));
        sin[at] = static_cast<float>(rope.attention_factor * std::sin(angle));
      }
    }
  }
  tables.cos_ = kernels::BackendArray<float>(backend, std::span<const float>(cos));
  tables.sin_ = kernels::BackendArray<float>(backend, std::span<const float>(sin));
  angles.cos = tables.cos_.data();
  angles.sin = tables.sin_.data();
  if (tables.cos_.allocated() && tables.sin_.allocated()) return tables;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for RoPE tables: ", 2 * cos.size() * sizeof(float),
                   " bytes (context ", max_context, ")"));
}

}  // namespace augur::engine
