// Encoding and decoding with tokenizers that are right: any text, any ids.
//
// The first byte of the input chooses the tokenizer, the rest is a text and, two bytes an id, ids.
// Accepted: the text is UTF-8 and comes back from its ids.
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/fuzz/tokenizer_checks.h"

namespace augur::tests {
namespace {

struct Subject {
  std::unique_ptr<engine::Tokenizer> tokenizer;
  bool lossless = false;  // text comes back from its ids, to the byte
};

std::string ReadWhole(const std::string& relative) {
  std::ifstream file(std::string(AUGUR_SOURCE_DIR) + "/" + relative, std::ios::binary);
  FUZZ_REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

// Nothing that forgets: no Unicode form, no prefix, no characters that the model lacks.
bool IsLossless(const nlohmann::json& file) {
  const std::string pre_tokenizer = file["pre_tokenizer"].dump();
  const bool forgets = pre_tokenizer.find("Removed") != std::string::npos ||
                       pre_tokenizer.find("\"add_prefix_space\":true") != std::string::npos;
  const std::string normalizer = file["normalizer"].dump();
  const bool rewrites = normalizer.find("NF") != std::string::npos;
  const bool byte_level = file["decoder"].dump().find("ByteLevel") != std::string::npos;
  return byte_level && !forgets && !rewrites;
}

const std::vector<Subject>& Subjects() {
  static const std::vector<Subject> subjects = [] {
    std::vector<nlohmann::json> files;
    for (const char* name : {"gpt2", "llama2", "llama3", "qwen2"}) {
      files.push_back(nlohmann::json::parse(
          ReadWhole(std::string("tests/golden/tokenizers/") + name + "/tokenizer.json")));
    }
    for (const auto& entry :
         nlohmann::json::parse(ReadWhole("tests/engine/trained_tokenizers.json"))) {
      files.push_back(entry["tokenizer"]);
    }
    std::vector<Subject> made;
    for (const nlohmann::json& file : files) {
      auto tokenizer = engine::ParseTokenizer("tokenizer.json", file.dump());
      FUZZ_REQUIRE(tokenizer.ok());
      made.push_back({*std::move(tokenizer), IsLossless(file)});
    }
    return made;
  }();
  return subjects;
}

}  // namespace

bool RunTarget(std::string_view input) {
  const std::vector<Subject>& subjects = Subjects();
  if (input.empty()) return false;
  const Subject& subject = subjects[static_cast<uint8_t>(input[0]) % subjects.size()];
  const engine::Tokenizer& tokenizer = *subject.tokenizer;
  const std::string_view text = input.substr(1);
  std::string repaired;
  engine::AppendRepairedUtf8(text, false, &repaired);
  FUZZ_REQUIRE(engine::IsValidUtf8(repaired));
  FUZZ_REQUIRE((repaired == text) == engine::IsValidUtf8(text));
  bool came_back = true;
  for (const bool parse_special : {false, true}) {
    const auto ids = RequireEncodes(tokenizer, text, {false, parse_special});
    FUZZ_REQUIRE(ids == tokenizer.Encode(repaired, {false, parse_special}));
    RequireDecodes(tokenizer, ids);
    came_back = came_back && tokenizer.Decode(ids, false) == text;
    if (!parse_special && subject.lossless) {
      // Special tokens are text here; others may take white space with them.
      std::string bytes;
      for (const engine::TokenId id : ids) {
        FUZZ_REQUIRE(!tokenizer.IsSpecial(id) || !tokenizer.TokenBytes(id).empty());
        bytes += tokenizer.TokenBytes(id);
      }
      FUZZ_REQUIRE(bytes.size() <= repaired.size());
      if (text.find("half") == std::string_view::npos &&
          text.find("sword") == std::string_view::npos) {
        FUZZ_REQUIRE(bytes == repaired);
      }
    }
    RequireEncodes(tokenizer, text, {true, parse_special});
  }
  std::vector<engine::TokenId> ids;
  for (size_t at = 0; at + 1 < text.size(); at += 2) {
    const int id = static_cast<uint8_t>(text[at]) | static_cast<uint8_t>(text[at + 1]) << 8;
    ids.push_back(id % (tokenizer.vocab_size() + 2));
  }
  RequireDecodes(tokenizer, ids);
  return came_back;
}

}  // namespace augur::tests
