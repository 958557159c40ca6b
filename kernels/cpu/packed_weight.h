// A weight in the panels that isa/linear_body.h reads (LinearBlock in isa_kernels.h says how they
// lie). bf16 stays bf16, which is exact and half the bytes a decode step streams; float32 and fp16
// become float32 panels, exact too (fp16 twice the bytes: no checkpoint we serve is worth a third
// kernel).
//
// Thread: immutable once packed. Ownership: owns its panels, not the source. Failure: out of memory
// is a CHECK, as weights are loaded at start.
#pragma once

#include <cstddef>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/linear.h"

namespace augur::kernels {

class CpuPackedWeight final : public PackedWeight {
 public:
  CpuPackedWeight(const WeightSource& source, const IsaKernels& isa, ThreadPool& pool);

  int out_features() const override { return out_features_; }
  int in_features() const override { return in_features_; }
  size_t bytes() const override { return panels_.bytes(); }

  bool is_bf16() const { return is_bf16_; }
  int panel_columns() const { return panel_columns_; }
  int num_panels() const { return (out_features_ + panel_columns_ - 1) / panel_columns_; }
  const std::byte* panel(int index) const { return panels_.data() + index * panel_bytes(); }

 private:
  size_t panel_bytes() const { return size_t(in_features_) * panel_columns_ * (is_bf16_ ? 2 : 4); }
  void PackPanel(const WeightSource& source, int index);

  int out_features_;
  int in_features_;
  int panel_columns_;
  bool is_bf16_;
  AlignedBuffer panels_;  // [num_panels][in_features][panel_columns]
};

}  // namespace augur::kernels
