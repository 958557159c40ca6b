// What a request needs of the pools of KV, and whether it could ever be served: before it is queued
// (CheckFits), when it is admitted, and when it moves to the host.
//
// Pure functions of a request, the options and the pools. Thread: any. Units: tokens, blocks of 64
// tokens. Failure: CheckFits gives INVALID_ARGUMENT naming the numbers.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/engine_options.h"
#include "engine/request.h"
#include "memory/kv_layout.h"
#include "memory/kv_pools.h"

namespace augur::engine {

// Prompt and max_tokens together, and the blocks that hold them.
int64_t MostTokens(const Request& request);
int MostBlocks(const Request& request);

// Whether the request may live in the host pool. Dense ones read everything at every step: they are
// tiered only where nothing else is offered.
bool MayBeTiered(const Request& request, const EngineOptions& options);

// What the KV of the request needs under `residency`.
memory::KvDemand DemandOf(const Request& request, const EngineOptions& options,
                          memory::Residency residency);

// Alone in the pools, to its last token.
bool FitsPools(const Request& request, const EngineOptions& options, const memory::KvPools& pools,
               memory::Residency residency);

// INVALID_ARGUMENT, naming the numbers, when the request could never be served: prompt + max_tokens
// beyond the context or beyond the whole device or host pool. Whatever passes will run, however
// long the queue: see batcher.h.
absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const memory::KvPools& pools);

}  // namespace augur::engine
