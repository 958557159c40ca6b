// Lets a model read a text whole while somebody watches its attention: for calibration, on the CPU,
// and for training, there or on a device.
//
// Thread: one. Ownership: the model's and the observer's stay the caller's. Failure: the model must
// have been loaded with room for the text and for a chunk's rows; else a CHECK.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/attention/device_observer.h"
#include "engine/attention/layer_worker.h"
#include "engine/model/model_loader.h"
#include "engine/model/transformer_layers.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

// Rows that are computed together: on the CPU of the tokens in a cache of the second level, enough
// to fill it; on a device what makes matrix products as fast as they get.
inline constexpr int kObservedChunkTokens = 256;
inline constexpr int kObservedDeviceChunkTokens = 8192;

struct ObservedModelOptions {
  std::string folder;
  // Instead of a folder, a config.json of random weights (ModelOptions::random_weights), without
  // tokenizer.
  std::string random_weights = {};
  int tokens = 0;                               // of a prompt, at most
  int threads = 1;                              // of the CPU
  std::optional<kernels::DType> kv_dtype = {};  // unset: the checkpoint's
  AttentionSettings attention = {};
  bool as_device = false;  // for tests: as on a device, on the CPU
};

struct ObservedModel : LoadedModel {
  bool on_device = false;
  int chunk_tokens = kObservedChunkTokens;

  const TransformerLayers& layers() const;
};

// A model for one prompt at a time, on the backend's CPU or device.
absl::StatusOr<ObservedModel> LoadObservedModel(const ObservedModelOptions& options,
                                                kernels::Backend* backend,
                                                const memory::Clock* clock);

// Told which rows come next.
using BeforeChunk = std::function<void(int first_position, int num_rows)>;

// One prefill under `choice`, seen by an observer of the model's own kind.
void ObservePrompt(std::span<const TokenId> tokens, const AttentionChoice& choice,
                   ObservedModel* model, AttentionObserver* observer,
                   const BeforeChunk& before_chunk);
void ObservePromptOnDevice(std::span<const TokenId> tokens, const AttentionChoice& choice,
                           ObservedModel* model, DeviceObserver* observer,
                           const BeforeChunk& before_chunk);

// UTF-8, or a status that names the path.
absl::StatusOr<std::string> ReadUtf8File(const std::string& path);

}  // namespace augur::engine
