// Made-up keys of a history in the host pool, such that what sampled attention draws of them looks
// like what it draws of text.
//
// A random model's queries have elements of variance 1/3, keys here are uniform in [-3s, 3s): a
// query head's scores are near normal with a spread of s nats, without any order in a block. In the
// first and the last `local` blocks of a history, where text has most of its mass, s is
// `near_spread`; in all others, which scores choose and which move, `far_spread`.
//
// The defaults give at 128 draws and MiniCPM4's selection (34 forced blocks of 96) some 40 distinct
// rows for each query head, one in seven of them in blocks that scores chose. Measured: 36 to 43
// rows a query head at about 8K tokens (SANTA's models; the bundled model, engine/attention/
// sampling.md), one in six of the bundled model's rows in such blocks (sampled_bytes_test). What a
// run has really drawn stands in its record.
//
// Not like text: query heads of a group look at different tokens (as the bundled model's four
// nearly do), so 16 heads read more rows than real ones may, and a block's rows do not come back
// more often than others of the same kind. And all of a history begins on the host, so that
// `--value-fetch rows` reads the local window there for ever, whose values really lie in its slots.
#pragma once

#include "kernels/dtype.h"
#include "memory/kv_pools.h"
#include "memory/sequence_kv.h"

namespace augur::bench {

struct SyntheticKeys {
  float near_spread = 3.8f;
  float far_spread = 2.5f;
};

// Writes the keys of blocks [0, blocks) of a sequence to its host pages; `threads` write. The first
// `init` and the last `local` blocks are near.
void FillHostKeys(const memory::KvPools& pools, const memory::SequenceKv& kv, int blocks, int init,
                  int local, kernels::DType dtype, const SyntheticKeys& keys, int threads);

}  // namespace augur::bench
