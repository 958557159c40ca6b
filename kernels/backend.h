// One virtual an op: what the engine needs computed, without a word about where. Implementations
// are twins (kernels/cpu now; CUDA implements the same calls with the same parameter structs and
// test bodies).
//
// Thread: calls come from one thread at a time, the engine's; ops are in order, each sees the
// writes of those before it. Results may be read by the host after Synchronize(). Ownership:
// Allocate/Free pair; every other pointer is the caller's and stays valid until Synchronize().
// Failure: a bad shape is our bug and a CHECK.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/ops/compress_keys.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/eviction_bias.h"
#include "kernels/ops/gated_silu.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/project_keys.h"
#include "kernels/ops/project_queries.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/rope_append.h"
#include "kernels/ops/sample_tokens.h"
#include "kernels/ops/select_blocks.h"
#include "kernels/ops/sum_channels.h"

namespace augur::kernels {

class Backend {
 public:
  virtual ~Backend() = default;

  // For the start-up line and bench records, e.g. "cpu avx512 x2".
  virtual std::string Describe() const = 0;

  // Uninitialised memory that ops may read and write, 64-byte aligned; null when there is not
  // enough.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* data) = 0;

  virtual std::unique_ptr<PackedWeight> PackWeight(const WeightSource& source) = 0;

  virtual void Embedding(const EmbeddingParams& params) = 0;
  virtual void RmsNorm(const RmsNormParams& params) = 0;
  virtual void Linear(const LinearParams& params) = 0;
  virtual void RopeAppend(const RopeAppendParams& params) = 0;
  virtual void CompressKeys(const CompressKeysParams& params) = 0;
  virtual void SelectBlocks(const SelectBlocksParams& params) = 0;
  virtual void SumChannels(const SumChannelsParams& params) = 0;
  virtual void ProjectKeys(const ProjectKeysParams& params) = 0;
  virtual void ProjectQueries(const ProjectQueriesParams& params) = 0;
  virtual void EvictionBias(const EvictionBiasParams& params) = 0;
  virtual void PagedAttention(const PagedAttentionParams& params) = 0;
  virtual void GatedSilu(const GatedSiluParams& params) = 0;
  virtual void SampleTokens(const SampleTokensParams& params) = 0;

  virtual void Synchronize() = 0;
};

enum class CpuIsa { kAuto, kGeneric, kAvx2, kAvx512 };  // kAuto: the best that this CPU has

struct CpuBackendOptions {
  int num_threads = 1;  // worker threads, the calling thread among them; at least 1
  CpuIsa isa =
      CpuIsa::kAuto;  // a wish beyond the CPU's means is a CHECK; tests force the smaller ones
};

std::unique_ptr<Backend> MakeCpuBackend(const CpuBackendOptions& options);

// What kAuto picks here.
CpuIsa DetectCpuIsa();

}  // namespace augur::kernels
