// The CUDA backend, for whoever has no CUDA headers. Built only in the cuda preset.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace augur::kernels {

// Which kernels of a recorded step have another priority than the order that launches it.
enum class GraphPriorities {
  kNone,
  kCopies,  // those on Lane::kFetch, above the others
  kLanes,   // all that are on lanes, each its lane's
};

struct CudaBackendOptions {
  int device = 0;
  int max_decode_rows = 256;  // of one call in Phase::kDecode: sizes scratch
  // Of most calls in Phase::kDecode, at most. Up to 16, products may be chosen that read their
  // weight faster (streamed_linear.h) and read it again for every 16 rows more.
  int usual_decode_rows = 256;
  // SMs that decode's products (chosen beside as many that are held as there are others) and decode
  // attention are planned for, so that CTAs which copy find theirs free; 0: all.
  int product_sms = 0;
  int attention_sms = 0;
  GraphPriorities graph_priorities = GraphPriorities::kNone;
};

// Null, with a line for the person at the console in *error: no driver, no such device, another
// architecture, no memory for scratch.
std::unique_ptr<Backend> MakeCudaBackend(const CudaBackendOptions& options, std::string* error);

}  // namespace augur::kernels
