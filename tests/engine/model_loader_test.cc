// Folders as people have them (dtypes, shards, tied heads), and folders that are broken: one status
// naming file, key or tensor, never a crash.
#include "engine/model/model_loader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/transformer_runner.h"
#include "kernels/backend.h"
#include "tests/support/allocation_count.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using tests::ReadTensors;
using tests::ReadWhole;
using tests::ScratchFolder;
using tests::TensorMap;
using tests::WriteWhole;

const std::string& GoldenFolder() {
  static const std::string folder = std::string(AUGUR_SOURCE_DIR) + "/tests/golden/models/llama";
  return folder;
}

nlohmann::json GoldenConfig() {
  return nlohmann::json::parse(ReadWhole(GoldenFolder() + "/config.json"));
}

class ModelLoaderTest : public testing::Test {
 protected:
  absl::StatusOr<LoadedModel> Load(kernels::DType kv_dtype = kernels::DType::kF32) {
    ModelOptions options;
    options.folder = scratch_.path();
    options.kv.device_bytes = 16 << 20;
    options.kv.dtype = kv_dtype;
    options.max_batch = 4;
    options.max_batched_tokens = 128;
    return LoadModel(backend_.get(), &clock_, options);
  }
  void WriteConfig(const nlohmann::json& config) {
    WriteWhole(scratch_.path() + "/config.json", config.dump());
  }
  std::string weights_path() const { return scratch_.path() + "/model.safetensors"; }

  // The folder is refused, and the message holds every one of `words`.
  void ExpectRefused(const std::vector<std::string>& words) {
    const absl::StatusOr<LoadedModel> model = Load();
    ASSERT_FALSE(model.ok());
    const std::string message(model.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
    }
  }

  // Logits of a fixed prompt.
  std::vector<float> Logits() {
    absl::StatusOr<LoadedModel> model = Load();
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return {};
    const std::vector<int32_t> ids = {5, 6, 7, 8, 300, 2, 1, 9};
    const AttentionChoice dense;
    EXPECT_TRUE(model->kv->store()->Open(
        {.id = 1, .demand = {}, .keys = {}, .hits = 0, .blocks = 1, .most_blocks = 1}));
    StepSegment segment;
    segment.rows = {.first_row = 0, .num_rows = 8, .first_position = 0};
    segment.kv = &model->kv->store()->sequence(1);
    segment.attention = &dense;
    segment.prompt_tokens = 8;
    segment.wants_token = true;
    segment.sampling.temperature = 0;
    StepOutputs outputs;
    auto& runner = static_cast<TransformerRunner&>(*model->runner);
    runner.Run({.token_ids = ids, .segments = {&segment, 1}}, &outputs);
    return {runner.logits().begin(), runner.logits().end()};
  }

  ScratchFolder scratch_;
  const memory::SteadyClock clock_;
  std::unique_ptr<kernels::Backend> backend_ = kernels::MakeCpuBackend({.num_threads = 1});
};

TEST_F(ModelLoaderTest, HalfPrecisionEqualsItsWideningBitForBit) {
  WriteConfig(GoldenConfig());
  const TensorMap original = ReadTensors(GoldenFolder() + "/model.safetensors");
  for (const char* dtype : {"BF16", "F16"}) {
    const TensorMap narrow = tests::Convert(original, dtype);
    tests::WriteTensors(weights_path(), narrow);
    const std::vector<float> found = Logits();
    tests::WriteTensors(weights_path(), tests::Convert(narrow, "F32"));
    EXPECT_EQ(found, Logits()) << dtype;
  }
}

TEST_F(ModelLoaderTest, ShardsEqualOneFile) {
  WriteConfig(GoldenConfig());
  const TensorMap tensors = ReadTensors(GoldenFolder() + "/model.safetensors");
  tests::WriteTensors(weights_path(), tensors);
  const std::vector<float> whole = Logits();
  std::filesystem::remove(weights_path());
  tests::WriteShards(scratch_.path(), tensors, 3);
  EXPECT_EQ(Logits(), whole);
}

TEST_F(ModelLoaderTest, ATiedHeadIsTheEmbedding) {
  nlohmann::json config = GoldenConfig();
  TensorMap tensors = ReadTensors(GoldenFolder() + "/model.safetensors");
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  WriteConfig(config);
  tests::WriteTensors(weights_path(), tensors);
  const std::vector<float> untied = Logits();
  const int64_t untied_parameters = Load()->info.num_parameters;
  tensors.erase("lm_head.weight");
  config["tie_word_embeddings"] = true;
  WriteConfig(config);
  tests::WriteTensors(weights_path(), tensors);
  EXPECT_EQ(Logits(), untied);
  EXPECT_EQ(Load()->info.num_parameters, untied_parameters - 384 * 64);
}

TEST_F(ModelLoaderTest, BothConfigDialectsAndEosFromBothFiles) {
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  WriteConfig(GoldenConfig());
  const std::vector<float> old_dialect = Logits();
  WriteConfig(nlohmann::json::parse(ReadWhole(GoldenFolder() + "/config.v5.json")));
  EXPECT_EQ(Logits(), old_dialect);
  WriteWhole(scratch_.path() + "/generation_config.json", R"({"eos_token_id": [7, 2, 5]})");
  EXPECT_EQ(Load()->info.eos_token_ids, (std::vector<TokenId>{2, 5, 7}));
}

// Every golden folder: what GetModel says of it.
TEST_F(ModelLoaderTest, FamilyParametersAndDtypeOfEveryGoldenModel) {
  int folders = 0;
  const std::string models = std::string(AUGUR_SOURCE_DIR) + "/tests/golden/models";
  for (const auto& folder : std::filesystem::directory_iterator(models)) {
    ModelOptions options;
    options.folder = folder.path().string();
    SCOPED_TRACE(options.folder);
    options.kv.device_bytes = 16 << 20;
    const absl::StatusOr<LoadedModel> model = LoadModel(backend_.get(), &clock_, options);
    ASSERT_TRUE(model.ok()) << model.status();
    int64_t parameters = 0;
    std::string dtype;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() != ".safetensors") continue;
      for (const auto& [name, tensor] : ReadTensors(file.path().string())) {
        int64_t count = 1;
        for (const int64_t side : tensor.shape) count *= side;
        parameters += count;
        dtype = tensor.dtype;
      }
    }
    const auto config = nlohmann::json::parse(ReadWhole(options.folder + "/config.json"));
    EXPECT_EQ(model->info.family, config["model_type"].get<std::string>());
    EXPECT_EQ(model->info.num_parameters, parameters);
    const kernels::DType expected = dtype == "F32"    ? kernels::DType::kF32
                                    : dtype == "BF16" ? kernels::DType::kBF16
                                                      : kernels::DType::kF16;
    EXPECT_EQ(model->info.dtype, expected);
    ++folders;
  }
  EXPECT_GE(folders, 10);
}

TEST_F(ModelLoaderTest, ConfigMistakesNameFileAndKey) {
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  ExpectRefused({"config.json", "cannot be opened"});
  WriteWhole(scratch_.path() + "/config.json", "{\"model_type\": ");
  ExpectRefused({"config.json", "not valid JSON"});
  WriteWhole(scratch_.path() + "/config.json", std::string(100000, '['));
  ExpectRefused({"config.json", "nested deeper than 64"});
  const auto with = [this](const char* key, const nlohmann::json& value) {
    nlohmann::json config = GoldenConfig();
    config[key] = value;
    WriteConfig(config);
  };
  with("model_type", "gpt2");
  ExpectRefused({"config.json", "model_type", "llama", "gpt2"});
  with("hidden_size", "64");
  ExpectRefused({"config.json", "hidden_size", "integer"});
  with("hidden_size", -1);
  ExpectRefused({"config.json", "hidden_size", "-1"});
  with("num_attention_heads", 0);
  ExpectRefused({"num_attention_heads"});
  with("num_key_value_heads", 3);
  ExpectRefused({"num_key_value_heads", "divisor", "8"});
  with("head_dim", 300);
  ExpectRefused({"head_dim", "256"});
  with("hidden_act", "gelu");
  ExpectRefused({"hidden_act", "silu", "gelu"});
  with("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}});
  ExpectRefused({"rope_scaling.rope_type", "dynamic"});
  with("sliding_window", 128);
  ExpectRefused({"sliding_window", "128"});
  with("partial_rotary_factor", 0.5);
  ExpectRefused({"partial_rotary_factor"});
  with("quantization_config", {{"bits", 4}});
  ExpectRefused({"quantization_config"});
  with("eos_token_id", 384);
  ExpectRefused({"eos_token_id", "383"});
}

TEST_F(ModelLoaderTest, WeightMistakesNameFileAndTensor) {
  WriteConfig(GoldenConfig());
  ExpectRefused({"model.safetensors"});
  const TensorMap original = ReadTensors(GoldenFolder() + "/model.safetensors");
  TensorMap tensors = original;
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  tests::WriteTensors(weights_path(), tensors);
  ExpectRefused({"model.safetensors", "model.layers.1.mlp.up_proj.weight", "[160, 64]", "none"});
  tensors = original;
  tensors["model.norm.weight"].shape = {1, 64};
  tests::WriteTensors(weights_path(), tensors);
  ExpectRefused({"model.norm.weight", "[64]", "[1, 64]"});
  tensors = original;
  tensors["model.norm.weight"].dtype = "I32";
  tests::WriteTensors(weights_path(), tensors);
  ExpectRefused({"model.norm.weight", "BF16", "I32"});
  tensors = original;
  tensors["model.norm.weight"].bytes.resize(100);
  tests::WriteTensors(weights_path(), tensors);
  ExpectRefused({"model.norm.weight", "256"});
  tensors = original;
  tensors["model.norm.weight"].shape = {int64_t{1} << 40, int64_t{1} << 40};
  tests::WriteTensors(weights_path(), tensors);
  ExpectRefused({"model.norm.weight", "too large"});
}

TEST_F(ModelLoaderTest, BrokenFilesAreRefused) {
  WriteConfig(GoldenConfig());
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  const std::string whole = ReadWhole(weights_path());
  const auto with_length = [&whole](uint64_t length) {
    std::string bytes = whole;
    std::memcpy(bytes.data(), &length, 8);
    return bytes;
  };
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{7}, whole.size() - 7,
                                uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}}) {
    WriteWhole(weights_path(), with_length(length));
    ExpectRefused({"model.safetensors"});
  }
  for (size_t size = 0; size < whole.size(); size += 4096) {
    WriteWhole(weights_path(), whole.substr(0, size));
    ExpectRefused({"model.safetensors"});
  }
  WriteWhole(weights_path(), whole + "x");
  ExpectRefused({"model.safetensors", "size"});
}

TEST_F(ModelLoaderTest, AShardThatIsMissingOrElsewhereIsRefused) {
  WriteConfig(GoldenConfig());
  const TensorMap tensors = ReadTensors(GoldenFolder() + "/model.safetensors");
  tests::WriteShards(scratch_.path(), tensors, 2);
  std::filesystem::remove(scratch_.path() + "/model-1.safetensors");
  ExpectRefused({"model-1.safetensors"});
  WriteWhole(scratch_.path() + "/model.safetensors.index.json",
             R"({"weight_map": {"a": "../x.safetensors"}})");
  ExpectRefused({"index.json", "same folder"});
}

// Neither a loop of links nor a pipe may hang or throw; a broken link is not an absent file.
TEST_F(ModelLoaderTest, WhatIsNoRegularFileIsRefused) {
  const std::string folder = scratch_.path();
  WriteConfig(GoldenConfig());
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  for (const char* name :
       {"tokenizer.json", "generation_config.json", "model.safetensors.index.json"}) {
    const std::string path = folder + "/" + name;
    for (const char* target : {name, "nowhere"}) {
      std::filesystem::create_symlink(target, path);
      ExpectRefused({name});
      std::filesystem::remove(path);
    }
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    ExpectRefused({name, "regular file"});
    std::filesystem::remove(path);
  }
  std::filesystem::remove(weights_path());
  ASSERT_EQ(mkfifo(weights_path().c_str(), 0600), 0);
  ExpectRefused({"model.safetensors", "regular file"});
  // A regular file that says 0 bytes and holds many.
  std::filesystem::remove(weights_path());
  std::filesystem::create_symlink("/proc/self/maps", weights_path());
  ExpectRefused({"model.safetensors", "header length", "at most 0"});
}

TEST_F(ModelLoaderTest, HeadsThatOverflowAreRefused) {
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  nlohmann::json config = GoldenConfig();
  config["num_attention_heads"] = 1 << 24;
  config["num_key_value_heads"] = 1 << 24;
  config["head_dim"] = 256;
  WriteConfig(config);
  ExpectRefused({"num_attention_heads", "65536"});
}

// MiniCPM's selection knobs: read for any family, refused by name where they ask for other maths.
TEST_F(ModelLoaderTest, SparseConfigIsHonoured) {
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  nlohmann::json config = GoldenConfig();
  config["sparse_config"] = {{"kernel_size", 32}, {"kernel_stride", 16}, {"init_blocks", 1},
                             {"block_size", 64},  {"window_size", 2048}, {"topk", 64},
                             {"use_nope", false}, {"dense_len", 8192}};
  WriteConfig(config);
  const absl::StatusOr<LoadedModel> model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->attention.choice.Fingerprint(), "sparse/sparse/96/1/33/8192");
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>{"kernel_size", 16},
                                   {"kernel_stride", 8},
                                   {"block_size", 128},
                                   {"use_nope", true},
                                   {"window_size", 100},
                                   {"topk", "many"}}) {
    nlohmann::json wrong = config;
    wrong["sparse_config"][key] = value;
    WriteConfig(wrong);
    ExpectRefused({"sparse_config", key});
  }
}

TEST_F(ModelLoaderTest, LimitsNameTheirKnob) {
  WriteConfig(GoldenConfig());
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  ModelOptions options;
  options.folder = scratch_.path();
  options.max_context = 513;
  options.kv.device_bytes = 16 << 20;
  absl::StatusOr<LoadedModel> model = LoadModel(backend_.get(), &clock_, options);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(std::string(model.status().message()).find("512"), std::string::npos) << model.status();
  options.max_context = 0;
  options.kv.device_bytes = 1000;
  model = LoadModel(backend_.get(), &clock_, options);
  ASSERT_FALSE(model.ok());
  EXPECT_NE(std::string(model.status().message()).find("kv_bytes"), std::string::npos)
      << model.status();
  options.kv.device_bytes = 16 << 20;
  options.kv.residency = ResidencyMode::kTiered;
  options.kv.host_bytes = 1000;
  const auto expect_refused = [&](const std::vector<std::string>& words) {
    model = LoadModel(backend_.get(), &clock_, options);
    ASSERT_FALSE(model.ok());
    for (const std::string& word : words) {
      EXPECT_NE(std::string(model.status().message()).find(word), std::string::npos)
          << model.status();
    }
  };
  expect_refused({"host_kv_bytes", "1000"});
  options.kv.host_bytes = 16 << 20;
  options.kv.staging_blocks = 8;
  expect_refused({"staging_blocks", "16", "8"});
  options.kv.residency = ResidencyMode::kDevice;
  options.kv.staging_blocks = 17;
  expect_refused({"staging_blocks", "multiple of 16", "17"});
  options.kv.staging_blocks = 0;
  options.kv.host_fp8 = true;
  expect_refused({"host_kv_dtype", "residency", "device", "fp8"});
}

// Tables are for what the pool holds, not for what a file says of itself.
TEST_F(ModelLoaderTest, MillionsOfPositionsCostNothing) {
  nlohmann::json config = GoldenConfig();
  config["max_position_embeddings"] = 1 << 24;
  WriteConfig(config);
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  const tests::AllocationPeak peak;
  const absl::StatusOr<LoadedModel> model = Load();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->max_context, 1 << 24);
  EXPECT_LT(peak.bytes(), 64 << 20);
}

// Forecast heads of another model are refused by tensor, with both shapes.
TEST_F(ModelLoaderTest, ForecastHeadsOfTheWrongShapeAreRefused) {
  WriteConfig(GoldenConfig());
  tests::WriteTensors(weights_path(), ReadTensors(GoldenFolder() + "/model.safetensors"));
  const nlohmann::json config = GoldenConfig();
  const int layers = config["num_hidden_layers"], hidden = config["hidden_size"];
  const int heads = config["num_attention_heads"];
  const int kv_width =
      config["num_key_value_heads"].get<int>() * config.value("head_dim", hidden / heads);
  const std::string path = scratch_.path() + "/heads.safetensors";
  ModelOptions options;
  options.folder = scratch_.path();
  options.kv.device_bytes = 16 << 20;
  options.attention.forecast_heads = path;
  const auto load = [&](int some_layers, int width) {
    tests::WriteRandomForecast(path, some_layers, width, hidden, 1);
    return LoadModel(backend_.get(), &clock_, options);
  };
  const auto right = load(layers, kv_width);
  EXPECT_TRUE(right.ok()) << right.status();
  for (const auto& model : {load(layers, kv_width + 2), load(layers - 1, kv_width)}) {
    ASSERT_FALSE(model.ok());
    const std::string message(model.status().message());
    EXPECT_NE(message.find("heads.safetensors"), std::string::npos) << message;
    EXPECT_NE(message.find("proj"), std::string::npos) << message;
  }
  options.attention.forecast_heads = scratch_.path() + "/absent.safetensors";
  EXPECT_FALSE(LoadModel(backend_.get(), &clock_, options).ok());
}

}  // namespace
}  // namespace augur::engine
