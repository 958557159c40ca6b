// Ids and texts against Hugging Face: the golden vectors, tokenizer_cases.json (see
// tokenizer_cases.py) for steps and added-token flags that the golden files do not have, and
// trained_tokenizers.json (trained_tokenizers.py): a tokenizer trained in each pipeline.
#include <vector>

#include "tests/engine/tokenizer_fixture.h"

namespace augur::engine {
namespace {

using Ids = std::vector<TokenId>;

class GoldenTokenizer : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTokenizer, AgreesOnEveryVector) {
  const auto tokenizer = MustLoad(GoldenTokenizerPath(GetParam()));
  ASSERT_NE(tokenizer, nullptr);
  const auto vectors =
      ReadJson(SourcePath("tests/golden/tokenizers/" + GetParam() + "/vectors.json"));
  ASSERT_GT(vectors.size(), 20u);
  for (const auto& vector : vectors) {
    const std::string text = vector["text"];
    SCOPED_TRACE(text);
    EXPECT_EQ(tokenizer->Encode(text, {.add_special_tokens = true}), vector["ids"].get<Ids>());
    EXPECT_EQ(tokenizer->Encode(text, {.add_special_tokens = false}),
              vector["ids_no_special"].get<Ids>());
    EXPECT_EQ(tokenizer->Decode(vector["ids"].get<Ids>(), true), vector["decoded"]);
    EXPECT_EQ(tokenizer->Decode(vector["ids"].get<Ids>(), false), vector["decoded_keep"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, GoldenTokenizer,
                         testing::Values("gpt2", "llama2", "llama3", "qwen2"),
                         [](const auto& named) { return named.param; });

class TokenizerCases : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerCases, AgreeWithHuggingFace) {
  const auto entries = ReadJson(SourcePath("tests/engine/" + GetParam() + ".json"));
  ASSERT_GT(entries.size(), 15u);
  for (const auto& entry : entries) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    nlohmann::json file = entry.value("tokenizer", nlohmann::json());
    if (file.is_null()) {
      file = ReadJson(SourcePath(entry["file"]));
      for (const auto& section : entry["sections"].items()) file[section.key()] = section.value();
    }
    const auto loaded = LoadFromText(file.dump());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Tokenizer& tokenizer = **loaded;
    for (const auto& test : entry["cases"]) {
      const std::string text = test["text"];
      const bool parse_special = test["parse_special"];
      SCOPED_TRACE(text);
      EXPECT_EQ(tokenizer.Encode(text, {true, parse_special}), test["ids"].get<Ids>());
      EXPECT_EQ(tokenizer.Encode(text, {false, parse_special}), test["ids_no_special"].get<Ids>());
      EXPECT_EQ(tokenizer.Decode(test["stray"].get<Ids>(), true), test["decoded"]);
      EXPECT_EQ(tokenizer.Decode(test["stray"].get<Ids>(), false), test["decoded_keep"]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerCases,
                         testing::Values("tokenizer_cases", "trained_tokenizers"),
                         [](const auto& named) { return named.param; });

TEST(SpecialTokens, AreTextWhereTheyAreNotParsed) {
  const auto tokenizer = MustLoad(DemoTokenizerPath());
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "a<|end|>b";
  const Ids parsed = tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = true});
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[1], 1);
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  EXPECT_EQ(tokenizer->Decode(parsed, true), "ab");
  EXPECT_EQ(tokenizer->Decode(parsed, false), text);
  const Ids plain = tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = false});
  for (const TokenId id : plain) EXPECT_FALSE(tokenizer->IsSpecial(id));
  EXPECT_EQ(tokenizer->Decode(plain, true), text);
}

TEST(SpecialTokens, BeginTokenOnlyOnRequest) {
  const auto tokenizer = MustLoad(DemoTokenizerPath());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->Encode("", {}), Ids{0});
  EXPECT_EQ(tokenizer->Encode("", {.add_special_tokens = false}), Ids{});
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreSkipped) {
  const auto tokenizer = MustLoad(DemoTokenizerPath());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  const Ids known = tokenizer->Encode("abc", {.add_special_tokens = false});
  Ids mixed = {-1, 4096, INT32_MAX, INT32_MIN};
  mixed.insert(mixed.begin() + 2, known.begin(), known.end());
  EXPECT_EQ(tokenizer->Decode(mixed, false), "abc");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(4096), "");
  EXPECT_FALSE(tokenizer->IsSpecial(-5));
}

TEST(Tokenizer, BrokenUtf8IsRepairedBeforeItIsEncoded) {
  const auto tokenizer = MustLoad(GoldenTokenizerPath("qwen2"));
  ASSERT_NE(tokenizer, nullptr);
  const Ids ids = tokenizer->Encode("a\xE4\xB8 b\xFF", {});
  EXPECT_EQ(tokenizer->Decode(ids, true), "a\uFFFD b\uFFFD");
}

}  // namespace
}  // namespace augur::engine
