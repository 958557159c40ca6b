// config.json: whatever it says, a checked struct or one line.
#include <cmath>
#include <vector>

#include "engine/model/model_config.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace augur::tests {

bool RunTarget(std::string_view input) {
  const MemoryFile file(input);
  const absl::StatusOr<engine::ModelConfig> config = engine::LoadModelConfigFile(file.path());
  if (!config.ok()) {
    FUZZ_REQUIRE(config.status().message().find('\n') == std::string_view::npos);
    FUZZ_REQUIRE(config.status().message().size() < 1000);
    return false;
  }
  // What the rest of the engine divides by and multiplies.
  for (const int dimension : {config->vocab_size, config->hidden_size, config->intermediate_size,
                              config->num_layers, config->num_q_heads, config->num_kv_heads,
                              config->head_dim, config->max_position_embeddings}) {
    FUZZ_REQUIRE(dimension > 0 && dimension <= 1 << 24);
  }
  FUZZ_REQUIRE(config->num_q_heads % config->num_kv_heads == 0);
  FUZZ_REQUIRE(config->head_dim % 2 == 0);
  FUZZ_REQUIRE(int64_t{config->num_q_heads} * config->head_dim <= 1 << 24);
  FUZZ_REQUIRE(config->rms_norm_epsilon > 0);
  for (const float scale :
       {config->attention_scale(), config->embedding_scale(), config->stream_epsilon()}) {
    FUZZ_REQUIRE(!std::isnan(scale));
  }
  for (const int variant : {0, 1}) {
    const std::vector<double> frequencies =
        engine::InverseFrequencies(config->rope, config->head_dim, variant);
    FUZZ_REQUIRE(frequencies.size() == static_cast<size_t>(config->head_dim / 2));
    for (const double frequency : frequencies) FUZZ_REQUIRE(!std::isnan(frequency));
  }
  for (const engine::TokenId id : config->eos_token_ids) {
    FUZZ_REQUIRE(id >= 0 && id < config->vocab_size);
  }
  return true;
}

}  // namespace augur::tests
