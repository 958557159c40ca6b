// Tokenizer files for tests: the golden ones, and temporary ones made from a JSON text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

inline std::string SourcePath(const std::string& relative) {
  return std::string(AUGUR_SOURCE_DIR) + "/" + relative;
}

inline std::string GoldenTokenizerPath(const std::string& name) {
  return SourcePath("tests/golden/tokenizers/" + name + "/tokenizer.json");
}

inline std::string DemoTokenizerPath() {
  return SourcePath("deploy/models/demo-9m/tokenizer.json");
}

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

inline nlohmann::json ReadJson(const std::string& path) {
  return nlohmann::json::parse(ReadWholeFile(path));
}

// Loads a tokenizer.json that exists only for this call.
inline absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFromText(const std::string& json) {
  const std::string path =
      testing::TempDir() + "augur_tokenizer_" + std::to_string(getpid()) + ".json";
  std::ofstream(path, std::ios::binary) << json;
  auto tokenizer = LoadTokenizer(path);
  unlink(path.c_str());
  return tokenizer;
}

inline std::unique_ptr<Tokenizer> MustLoad(const std::string& path) {
  auto tokenizer = LoadTokenizer(path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// An entry of trained_tokenizers.json; '_' stands for '-'.
inline std::unique_ptr<Tokenizer> LoadTrained(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  for (const auto& entry : ReadJson(SourcePath("tests/engine/trained_tokenizers.json"))) {
    if (entry["name"] != name) continue;
    auto tokenizer = LoadFromText(entry["tokenizer"].dump());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }
  ADD_FAILURE() << "no tokenizer " << name;
  return nullptr;
}

}  // namespace augur::engine
