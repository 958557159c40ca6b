// One forward pass over the rows of a step: what the engine core asks of a model. The real one is
// engine/model/transformer_runner.h; tests and the simulation have their own.
//
// Thread: the engine's. Ownership: inputs are the caller's and valid for the call; slots and writes
// of the sequences' KV are changed by it. Failure: none that a request could cause (ids are in the
// vocabulary, blocks are in the pool); a row whose logits are not finite gives kernels::kNotFinite
// for that segment alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/attention/attention_policy.h"
#include "engine/logit_rules.h"
#include "kernels/ops/sample_tokens.h"
#include "kernels/ops/segment.h"
#include "kernels/ops/top_logprobs.h"
#include "memory/sequence_kv.h"

namespace augur::engine {

// Consecutive tokens of one sequence that are computed in this step.
struct StepSegment {
  kernels::Segment rows;                       // where they stand in the step and the sequence
  memory::SequenceKv* kv = nullptr;            // with room for them
  const AttentionChoice* attention = nullptr;  // the request's
  int prompt_tokens = 0;                       // of the sequence
  bool wants_token = false;                    // sample a token from the last row
  kernels::SamplingRow sampling;               // read when wants_token
  const LogitRules* rules = nullptr;           // likewise; null: none apply to this token
  std::span<const int32_t> tokens = {};        // all of the sequence that are known
  // Log probabilities, of logits as the model gave them, before any rule: of the token that is
  // wanted and of so many most probable ones; -1: none.
  int logprobs = -1;
  // Likewise of the prompt's tokens behind rows at tell_from and later.
  int prompt_logprobs = -1;
  int tell_from = 0;
  int rope_variant = 0;  // by RopeVariantOf, for all of the sequence's life
};

// Which of a model's RoPE factor sets a sequence uses (engine/model/rope_scaling.h): the second one
// where prompt and max_tokens together exceed what the first one serves (ModelInfo's
// short_rope_context). Part of the prefix-cache key.
inline int RopeVariantOf(int short_rope_context, int64_t total_tokens) {
  return total_tokens > short_rope_context ? 1 : 0;
}

struct StepInputs {
  std::span<const int32_t> token_ids;  // [rows]
  std::span<const StepSegment> segments;
};

// Rows of a segment, by position, whose next token in the prompt is told.
struct ToldRows {
  int first = 0;
  int count = 0;
};
ToldRows ToldRowsOf(const StepSegment& segment);

struct StepOutputs {
  std::vector<int32_t>
      tokens;  // [segments]: sampled id or kernels::kNotFinite; 0 where none was wanted
  std::vector<kernels::TokenLogprobsRow> logprobs;  // [segments] where one wants them, else empty
  // ToldRowsOf of all segments, one after the other.
  std::vector<kernels::TokenLogprobsRow> prompt_logprobs;
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual void Run(const StepInputs& inputs, StepOutputs* outputs) = 0;
  // Before a sequence is saved or released: the runner forgets it. `keep`: what *kv says of its
  // slots is brought up to date first, where the runner keeps them elsewhere.
  virtual void Leave(memory::SequenceKv*, bool /*keep*/) {}
  // How long all Runs together have waited for a device, on the clock of the runner's maker; what
  // is left of their time the engine thread was busy.
  virtual int64_t waited_ns() const { return 0; }
};

}  // namespace augur::engine
