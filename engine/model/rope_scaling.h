// Rotary position embeddings of a model: from its config.json, in both dialects (`rope_theta` with
// `rope_scaling`, and transformers 5's `rope_parameters`), to the frequencies of each variant.
//
// A scaling changes the inverse frequencies; yarn and longrope also multiply cos and sin by an
// attention factor, so that q k is multiplied by its square. longrope has two sets of frequencies,
// variants: a sequence whose prompt and max_tokens together exceed the original length takes the
// long one for its whole life, every other the short one. All formulae are those of transformers
// 5.24, modeling_rope_utils.py.
//
// Pure functions over plain data. Thread: any. Failure: a status naming file and key.
#pragma once

#include <climits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/json/json_fields.h"
#include "engine/model/model_families.h"

namespace augur::engine {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn, kLongRope };

struct RopeScaling {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;             // linear, llama3, yarn: by how much the context has grown
  int original_context = INT_MAX;  // llama3, yarn, longrope: tokens, before it grew
  double attention_factor = 1.0;   // on cos and sin
  // llama3: wavelengths above original / low are divided by factor, those below original / high
  // stay, between them both are blended.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  // yarn: turns within the original context above which a frequency stays, below which it is
  // divided by factor.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true;  // yarn: the blend's ends lie on whole dimensions
  // longrope: divisors of the frequencies, [head_dim / 2].
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};

  // The most prompt and max_tokens together that variant 0 serves; INT_MAX: there is no other.
  int short_context() const;
  // Names all of the above, for fingerprints.
  std::string Describe() const;
};

// `fields`: the whole config.json. max_positions: its max_position_embeddings.
absl::StatusOr<RopeScaling> ReadRopeScaling(const JsonFields& fields, const std::string& file,
                                            const ModelFamily& family, int head_dim,
                                            int max_positions);

// Radians a position of each pair of elements, [head_dim / 2], of variant 0 or 1.
std::vector<double> InverseFrequencies(const RopeScaling& rope, int head_dim, int variant);

}  // namespace augur::engine
