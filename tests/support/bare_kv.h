// A KV store with bookkeeping only, for engines whose model is a fake: device frames, no host pool,
// no bytes that anyone reads.
#pragma once

#include "memory/kv_store.h"

namespace augur::tests {

class BareKv {
 public:
  explicit BareKv(int frames)
      : store_({.layout = {.num_layers = 1, .num_kv_heads = 1, .page_bytes = 64, .key_bytes = 2},
                .num_frames = frames},
               nullptr) {}
  memory::KvStore* store() { return &store_; }

 private:
  memory::KvStore store_;
};

}  // namespace augur::tests
