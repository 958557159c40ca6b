#include "kernels/cpu/packed_weight.h"

#include <cstdint>
#include <cstring>

#include "kernels/check.h"

namespace augur::kernels {

CpuPackedWeight::CpuPackedWeight(const WeightSource& source, const IsaKernels& isa,
                                 ThreadPool& pool)
    : out_features_(source.out_features),
      in_features_(source.in_features),
      panel_columns_(isa.panel_columns),
      is_bf16_(source.dtype == DType::kBF16) {
  AUGUR_CHECK(source.data != nullptr && out_features_ > 0 && in_features_ > 0);
  panels_ = AlignedBuffer(num_panels() * panel_bytes());
  AUGUR_CHECK(panels_.data() != nullptr);
  pool.ParallelFor(num_panels(), [&](int index, int) { PackPanel(source, index); });
}

void CpuPackedWeight::PackPanel(const WeightSource& source, int index) {
  std::byte* panel = panels_.data() + index * panel_bytes();
  std::memset(panel, 0, panel_bytes());
  for (int c = 0; c < panel_columns_; ++c) {
    const int output = index * panel_columns_ + c;
    if (output >= out_features_) break;
    const size_t row = size_t(output) * in_features_;
    if (is_bf16_) {
      const auto* from = static_cast<const uint16_t*>(source.data) + row;
      auto* to = reinterpret_cast<uint16_t*>(panel);
      const int half = panel_columns_ / 2;
      const int place = c < half ? 2 * c : 2 * (c - half) + 1;
      for (int i = 0; i < in_features_; ++i) to[size_t(i) * panel_columns_ + place] = from[i];
      continue;
    }
    auto* to = reinterpret_cast<float*>(panel);
    for (int i = 0; i < in_features_; ++i) {
      to[size_t(i) * panel_columns_ + c] =
          source.dtype == DType::kF32
              ? static_cast<const float*>(source.data)[row + i]
              : FloatFromF16(static_cast<const uint16_t*>(source.data)[row + i]);
    }
  }
}

}  // namespace augur::kernels
