// Lets a model read a text whole while somebody watches its attention: for calibration and
// training. On the CPU.
//
// Thread: one. Ownership: the model's and the observer's stay the caller's. Failure: the model must
// have been loaded with room for the text (FramesForPrompt) and for kChunk rows; else a CHECK.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/attention/layer_worker.h"
#include "engine/model/model_loader.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

// Rows that are computed together: of the tokens in a cache of the second level, enough to fill it.
inline constexpr int kObservedChunkTokens = 256;

// A model on the CPU for one prompt of at most `tokens`, with KV in `kv_dtype`.
absl::StatusOr<LoadedModel> LoadObservedModel(const std::string& folder, int tokens, int threads,
                                              kernels::DType kv_dtype, kernels::Backend* backend,
                                              const memory::Clock* clock);

// One prefill under `choice`. before_chunk: told which rows come next.
void ObservePrompt(std::span<const TokenId> tokens, const AttentionChoice& choice,
                   LoadedModel* model, AttentionObserver* observer,
                   const std::function<void(int first_position, int num_rows)>& before_chunk);

// UTF-8, or a status that names the path.
absl::StatusOr<std::string> ReadUtf8File(const std::string& path);

}  // namespace augur::engine
