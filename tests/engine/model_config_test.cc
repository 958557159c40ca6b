// config.json of each family: defaults, both RoPE dialects, and what is refused by its key.
#include "engine/model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/rope_tables.h"
#include "kernels/backend.h"
#include "tests/support/checkpoint_writer.h"

namespace augur::engine {
namespace {

using nlohmann::json;

std::string GoldenPath(const std::string& name) {
  return std::string(AUGUR_SOURCE_DIR) + "/tests/golden/" + name;
}

json GoldenConfig(const std::string& model) {
  return json::parse(tests::ReadWhole(GoldenPath("models/" + model + "/config.json")));
}

class ModelConfigTest : public testing::Test {
 protected:
  absl::StatusOr<ModelConfig> Load(const json& config) {
    tests::WriteWhole(scratch_.path() + "/config.json", config.dump());
    return LoadModelConfig(scratch_.path());
  }
  ModelConfig Loaded(const json& config) {
    const absl::StatusOr<ModelConfig> loaded = Load(config);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *loaded : ModelConfig{};
  }
  void ExpectRefused(const json& config, const std::vector<std::string>& words) {
    const absl::StatusOr<ModelConfig> loaded = Load(config);
    ASSERT_FALSE(loaded.ok()) << config;
    const std::string message(loaded.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
    }
  }
  void ExpectRefused(json config, const char* key, const json& value) {
    config[key] = value;
    ExpectRefused(config, {"config.json", key});
  }

  tests::ScratchFolder scratch_;
};

// transformers' own frequencies and attention factors, in both dialects (tests/golden/README.md).
TEST_F(ModelConfigTest, RopeFrequenciesAreTransformers) {
  const json vectors = json::parse(tests::ReadWhole(GoldenPath("rope_vectors.json")));
  ASSERT_GE(vectors.size(), 9u);
  for (const json& vector : vectors) {
    SCOPED_TRACE(vector["config"].dump());
    const ModelConfig config = Loaded(vector["config"]);
    EXPECT_NEAR(config.rope.attention_factor, vector["attention_factor"].get<double>(), 1e-9);
    const auto variants = vector["inverse_frequencies"].get<std::vector<std::vector<double>>>();
    EXPECT_EQ(config.rope.short_context() < INT_MAX, variants.size() == 2);
    for (size_t variant = 0; variant < variants.size(); ++variant) {
      const std::vector<double> found = InverseFrequencies(config.rope, config.head_dim, variant);
      ASSERT_EQ(found.size(), variants[variant].size());
      for (size_t i = 0; i < found.size(); ++i) {
        // Theirs are float32.
        EXPECT_NEAR(found[i] / variants[variant][i], 1.0, 5e-6) << variant << " " << i;
      }
    }
  }
}

TEST_F(ModelConfigTest, BothDialectsAreOneModel) {
  for (const char* model :
       {"llama", "llama-bias-headdim32", "llama3-rope", "qwen2", "qwen3", "phi3-longrope",
        "phi3-longrope-edge", "mistral-bf16", "llama-linear-f16", "qwen2-yarn-shards"}) {
    SCOPED_TRACE(model);
    const ModelConfig old_dialect = Loaded(GoldenConfig(model));
    const ModelConfig new_dialect = Loaded(json::parse(
        tests::ReadWhole(GoldenPath(std::string("models/") + model + "/config.v5.json"))));
    EXPECT_EQ(old_dialect.rope.Describe(), new_dialect.rope.Describe());
    EXPECT_EQ(old_dialect.family, new_dialect.family);
    EXPECT_EQ(old_dialect.head_dim, new_dialect.head_dim);
    EXPECT_EQ(old_dialect.qkv_bias, new_dialect.qkv_bias);
  }
}

// A config.json that says nothing takes transformers' defaults of the family.
TEST_F(ModelConfigTest, AbsentKeysTakeTheFamilysDefaults) {
  const ModelConfig llama = Loaded({{"model_type", "llama"}});
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.num_kv_heads, 32);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.eos_token_ids, std::vector<TokenId>{2});
  EXPECT_FALSE(llama.qkv_bias);
  const ModelConfig qwen2 = Loaded({{"model_type", "qwen2"}});
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  const ModelConfig qwen3 = Loaded(
      {{"model_type", "qwen3"}, {"num_attention_heads", 16}, {"num_key_value_heads", nullptr}});
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.num_kv_heads, 16);
  EXPECT_TRUE(qwen3.has_head_norms);
  const ModelConfig phi3 = Loaded({{"model_type", "phi3"}});
  EXPECT_EQ(phi3.eos_token_ids, std::vector<TokenId>{32000});
  EXPECT_FLOAT_EQ(phi3.rms_norm_epsilon, 1e-5f);
  EXPECT_TRUE(phi3.has_fused_projections);
  const ModelConfig granite = Loaded({{"model_type", "granite"}});
  EXPECT_EQ(granite.multipliers.attention, 1.0);
  const ModelConfig minicpm = Loaded({{"model_type", "minicpm"}});
  EXPECT_TRUE(minicpm.tie_word_embeddings);
  EXPECT_DOUBLE_EQ(minicpm.multipliers.residual, 1 / std::sqrt(32.0));
  EXPECT_DOUBLE_EQ(minicpm.multipliers.logits, 1 / 4096.0);
  // Its window is on where the file is silent.
  ExpectRefused({{"model_type", "mistral"}}, {"sliding_window", "4096"});
  EXPECT_EQ(Loaded({{"model_type", "mistral"}, {"sliding_window", nullptr}}).num_kv_heads, 8);
}

TEST_F(ModelConfigTest, NoDefaultEndOfSequenceBesideWhatAFileSays) {
  tests::WriteWhole(scratch_.path() + "/generation_config.json", R"({"eos_token_id": [7, 5]})");
  EXPECT_EQ(Loaded({{"model_type", "llama"}}).eos_token_ids, (std::vector<TokenId>{5, 7}));
  tests::WriteWhole(scratch_.path() + "/generation_config.json", "{}");
  EXPECT_EQ(Loaded({{"model_type", "llama"}}).eos_token_ids, (std::vector<TokenId>{2}));
  EXPECT_TRUE(Loaded({{"model_type", "llama"}, {"eos_token_id", nullptr}}).eos_token_ids.empty());
}

// What changes the maths of one family is no key of another.
TEST_F(ModelConfigTest, KeysOfOtherMathsAreRefusedByName) {
  for (const char* model :
       {"llama", "mistral-bf16", "qwen2", "qwen3", "phi3-longrope", "granite-mup", "minicpm"}) {
    SCOPED_TRACE(model);
    const json config = GoldenConfig(model);
    ASSERT_TRUE(Load(config).ok()) << Load(config).status();
    for (const char* key :
         {"quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "use_qk_norm",
          "num_experts", "num_local_experts", "clip_qkv", "kv_lora_rank", "lm_head_bias"}) {
      ExpectRefused(config, key, 7);
      json off = config;
      off[key] = nullptr;
      EXPECT_TRUE(Load(off).ok()) << key;
      off[key] = false;
      EXPECT_TRUE(Load(off).ok()) << key;
    }
    ExpectRefused(config, "hidden_act", "gelu");
    ExpectRefused(config, "hidden_act", "fatrelu");
    ExpectRefused(config, "partial_rotary_factor", 0.5);
    ExpectRefused(config, "layer_types", {"full_attention", "sliding_attention"});
    ExpectRefused(config, "layer_types", {"linear_attention"});
    ExpectRefused(config, "rms_norm_eps", 0);
    const bool granite = std::string(model) == "granite-mup", mup = std::string(model) == "minicpm";
    for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                            "logits_scaling"}) {
      ExpectRefused(config, key, granite ? -1.0 : 1.0);
    }
    for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"}) {
      ExpectRefused(config, key, mup ? 0.0 : 1.0);
    }
  }
  ExpectRefused(GoldenConfig("mistral-bf16"), "attention_bias", true);
  ExpectRefused(GoldenConfig("phi3-longrope"), "attention_bias", true);
  ExpectRefused(GoldenConfig("qwen3"), "mlp_bias", true);
  ExpectRefused({{"model_type", "minicpm3"}}, {"model_type", "minicpm", "minicpm3"});
}

TEST_F(ModelConfigTest, AWindowThatCutsIsRefused) {
  json mistral = GoldenConfig("mistral-bf16");  // 512 positions
  ExpectRefused(mistral, "sliding_window", 511);
  mistral["sliding_window"] = 512;
  EXPECT_TRUE(Load(mistral).ok());
  json qwen = GoldenConfig("qwen2");
  qwen["sliding_window"] = 128;
  EXPECT_TRUE(Load(qwen).ok());  // without the switch
  ExpectRefused(qwen, "use_sliding_window", "yes");
  qwen["use_sliding_window"] = true;
  EXPECT_TRUE(Load(qwen).ok());  // layer_types: full attention in all three layers
  qwen.erase("layer_types");
  qwen["max_window_layers"] = 3;
  EXPECT_TRUE(Load(qwen).ok());
  qwen["max_window_layers"] = 2;
  ExpectRefused(qwen, {"sliding_window", "128"});
  qwen["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  ExpectRefused(qwen, {"sliding_window", "128"});
  qwen["sliding_window"] = 512;
  EXPECT_TRUE(Load(qwen).ok());
  ExpectRefused(GoldenConfig("phi3-longrope"), "sliding_window", 128);
}

TEST_F(ModelConfigTest, RopeMistakesAreRefusedByName) {
  const json config = GoldenConfig("llama3-rope");
  const auto with = [&](const char* key, const json& value) {
    json changed = config;
    changed["rope_scaling"][key] = value;
    return changed;
  };
  ExpectRefused(with("rope_type", "dynamic"), {"rope_scaling.rope_type", "dynamic"});
  ExpectRefused(with("factor", 0), {"rope_scaling.factor"});
  ExpectRefused(with("factor", nullptr), {"rope_scaling.factor"});
  ExpectRefused(with("low_freq_factor", nullptr), {"rope_scaling.low_freq_factor"});
  ExpectRefused(with("high_freq_factor", 0.5), {"rope_scaling.high_freq_factor"});
  ExpectRefused(with("original_max_position_embeddings", -1), {"original_max_position_embeddings"});
  ExpectRefused(with("rope_theta", "big"), {"rope_scaling.rope_theta"});
  ExpectRefused(with("partial_rotary_factor", 0.5), {"rope_scaling.partial_rotary_factor"});
  ExpectRefused(with("mrope_section", {1, 2}), {"rope_scaling", "mrope_section"});
  ExpectRefused(with("long_mscale\nx", 2), {"rope_scaling", "long_mscale"});
  json list = config;
  list["rope_scaling"] = {1, 2};
  ExpectRefused(list, {"rope_scaling", "object"});
  json yarn = config;
  yarn["rope_scaling"] = {{"type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1}, {"beta_slow", 2}};
  ExpectRefused(yarn, {"rope_scaling.beta_fast"});
  json phi = GoldenConfig("phi3-longrope");
  for (const char* type : {"su", "yarn"}) {
    phi["rope_scaling"]["type"] = type;
    EXPECT_EQ(Loaded(phi).rope.type, RopeType::kLongRope);
  }
  phi["rope_scaling"]["type"] = "linear";
  ExpectRefused(phi, {"rope_scaling.type", "linear"});
  phi["rope_scaling"]["type"] = "longrope";
  phi["rope_scaling"]["short_factor"] = {1, 1, 1};
  ExpectRefused(phi, {"rope_scaling.short_factor", "4 numbers"});
  phi["rope_scaling"]["short_factor"] = {1, 1, 1, 0};
  ExpectRefused(phi, {"rope_scaling.short_factor"});
  phi["rope_scaling"].erase("short_factor");
  ExpectRefused(phi, {"rope_scaling.short_factor"});
}

// The short table covers the lengths it serves alone; equal factors are one variant.
TEST_F(ModelConfigTest, LongRopeHasATableAVariant) {
  const auto backend = kernels::MakeCpuBackend({.num_threads = 1});
  ModelConfig config = Loaded(GoldenConfig("phi3-longrope"));
  EXPECT_EQ(config.rope.short_context(), 128);
  auto tables = RopeTables::Create(backend.get(), config.rope, config.head_dim, 512);
  ASSERT_TRUE(tables.ok());
  EXPECT_EQ(tables->angles().covers, (std::array<int, 2>{128, 512}));
  EXPECT_EQ(tables->angles().first, (std::array<int, 2>{0, 128}));
  tables = RopeTables::Create(backend.get(), config.rope, config.head_dim, 100);
  EXPECT_EQ(tables->angles().covers, (std::array<int, 2>{100, 0}));
  config.rope.short_factors = config.rope.long_factors;
  EXPECT_EQ(config.rope.short_context(), INT_MAX);
  tables = RopeTables::Create(backend.get(), config.rope, config.head_dim, 512);
  EXPECT_EQ(tables->angles().covers, (std::array<int, 2>{512, 0}));
}

}  // namespace
}  // namespace augur::engine
