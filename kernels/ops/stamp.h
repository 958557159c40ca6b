#pragma once
#include <cstdint>

namespace augur::kernels {

// *at_ns = the time at which the op runs, on a clock that all ops of the backend share. What has
// been called before it in its order has ended.
struct StampParams {
  int64_t* at_ns = nullptr;  // [1]
};

}  // namespace augur::kernels
