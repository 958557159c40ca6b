// The forward pass of a decoder-only transformer over the rows of a step, for a backend whose ops
// read the host's memory (the CPU; a device has device_runner.h): transformer_layers.h with
// attention by engine/attention/layer_worker.h, which knows every policy and both tiers.
//
// Thread: the engine's. Ownership: owns weights and activations; backend, KV memory and clock
// outlive it.
// Everything is allocated by Create; a step allocates nothing. A row's result depends on its own
// sequence alone: see kernels/README.md for the ops' part of that promise.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/layer_worker.h"
#include "engine/model/model_config.h"
#include "engine/model/sampling_options.h"
#include "engine/model/transformer_layers.h"
#include "engine/model/transformer_weights.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "memory/kv_memory.h"

namespace augur::engine {

struct TransformerRunnerOptions {
  int max_rows = 0;      // of a step
  int max_segments = 0;  // sequences in a step
  int max_context = 0;   // positions that the RoPE tables cover
  kernels::DType kv_dtype = kernels::DType::kF32;
  bool has_forecast = false;  // the weights hold Forecast heads
  int max_top_k = 0;          // blocks, of any request's selection
  int staging_blocks = 64;
  bool prefetch = true;
  int recall_every = 0;
  int compute_threads = 1;
  ValueSampling values = {};  // not offered: no request samples
};

class TransformerRunner final : public ModelRunner {
 public:
  // RESOURCE_EXHAUSTED names the buffer, its bytes and the knob.
  static absl::StatusOr<std::unique_ptr<TransformerRunner>> Create(
      kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
      const TransformerRunnerOptions& options, memory::KvMemory* kv, const memory::Clock* clock);
  ~TransformerRunner() override;

  void Run(const StepInputs& inputs, StepOutputs* outputs) override;
  void Leave(memory::SequenceKv* kv, bool /*keep*/) override { rules_state_->Remove(kv->id); }

  // Logits of the last Run: one row of vocab_size for each segment that wanted a token, in order.
  // Valid until the next Run. For tests and prompt scoring.
  std::span<const float> logits() const;
  // Likewise, as rules have changed them; only after a step in which a segment had some.
  std::span<const float> adjusted() const;
  const LayerWorker& layer_worker() const { return *layer_worker_; }
  const TransformerLayers& layers() const { return *layers_; }
  // For calibration and training: see AttentionObserver.
  void set_observer(AttentionObserver* observer) { layer_worker_->set_observer(observer); }

 private:
  TransformerRunner(kernels::Backend* backend, const ModelConfig& config,
                    const TransformerRunnerOptions& options);
  LayerWorkerOptions AttentionOptions() const;
  void RunHead(const StepInputs& inputs, StepOutputs* outputs);
  void TellPrompts(const StepInputs& inputs, StepOutputs* outputs);
  void Sample(const StepInputs& inputs);

  kernels::Backend* const backend_;
  const ModelConfig config_;
  const TransformerRunnerOptions options_;

  std::unique_ptr<TransformerLayers> layers_;
  std::unique_ptr<LayerWorker> layer_worker_;
  std::unique_ptr<LogitState> rules_state_;
  std::vector<int32_t> sampled_rows_;  // last rows of segments that want a token
  std::vector<kernels::SamplingRow> sampling_;
  std::vector<kernels::LogitRule> rules_;  // of sampled rows
  std::vector<int32_t> top_;               // likewise: StepSegment::logprobs
  std::vector<kernels::TokenLogprobsRow> logprobs_;
  ToldList told_;
  std::vector<int32_t> sampled_;
};

}  // namespace augur::engine
