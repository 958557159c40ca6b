// What attention works on in every layer of a device's step, for training: AttentionObserver's
// (layer_worker.h) sister where rows do not leave the device.
//
// Thread: called by the engine's inside DeviceRunner::Run, behind the layer's rotation and
// appending of keys, before its attention; may call ops of the runner's backend.
#pragma once

#include "kernels/dtype.h"

namespace augur::engine {

class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  // qkv: [rows, row_stride] on the device, q heads, k heads (both after RoPE), v heads. input: what
  // they were made of, [rows, hidden] of input_dtype. Valid for ops called now.
  virtual void ObserveOnDevice(int layer, int rows, const float* qkv, int row_stride,
                               const void* input, kernels::DType input_dtype) = 0;
};

}  // namespace augur::engine
