// The pieces of IncrementalDecoder put together are Decode of all ids, and each is valid UTF-8 at
// once. The repair of broken bytes is checked against a second, slow implementation.
#include "engine/tokenizer/incremental_decoder.h"

#include <random>
#include <vector>

#include "engine/tokenizer/utf8.h"
#include "tests/engine/tokenizer_fixture.h"

namespace augur::engine {
namespace {

// A vocabulary of spelled-out bytes, so that tests decide what each id contributes.
class BytesTokenizer : public Tokenizer {
 public:
  explicit BytesTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  std::vector<TokenId> Encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::string Decode(const std::vector<TokenId>&, bool) const override { return ""; }
  std::string TokenBytes(TokenId id) const override { return tokens_.at(static_cast<size_t>(id)); }
  bool IsSpecial(TokenId) const override { return false; }
  int vocab_size() const override { return static_cast<int>(tokens_.size()); }

 private:
  std::vector<std::string> tokens_;
};

// All well-formed characters, from the definition: decode by the bit patterns, then refuse what is
// too long, a surrogate or too large.
bool IsCharacter(const std::string& bytes) {
  const auto at = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  if (bytes.size() == 1) return at(0) < 0x80;
  uint32_t value = 0;
  if (bytes.size() == 2 && (at(0) & 0xE0) == 0xC0)
    value = at(0) & 0x1F;
  else if (bytes.size() == 3 && (at(0) & 0xF0) == 0xE0)
    value = at(0) & 0x0F;
  else if (bytes.size() == 4 && (at(0) & 0xF8) == 0xF0)
    value = at(0) & 0x07;
  else
    return false;
  for (size_t i = 1; i < bytes.size(); ++i) {
    if ((at(i) & 0xC0) != 0x80) return false;
    value = value << 6 | (at(i) & 0x3F);
  }
  constexpr uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};
  return value >= kLowest[bytes.size()] && value <= 0x10FFFF &&
         !(value >= 0xD800 && value <= 0xDFFF);
}

// Whether some character begins with these bytes: by trying every continuation at its two extremes
// and between.
bool BeginsCharacter(const std::string& bytes) {
  if (IsCharacter(bytes)) return true;
  if (bytes.size() >= 4) return false;
  for (int next = 0x80; next <= 0xBF; ++next) {
    if (BeginsCharacter(bytes + static_cast<char>(next))) return true;
  }
  return false;
}

// Unicode's "maximal subparts": the longest beginning of a character, at least one byte, is one
// U+FFFD.
std::string SlowRepair(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    size_t length = 1;
    while (length < 4 && at + length < bytes.size() && !IsCharacter(bytes.substr(at, length)) &&
           BeginsCharacter(bytes.substr(at, length + 1))) {
      ++length;
    }
    const std::string part = bytes.substr(at, length);
    text += IsCharacter(part) ? part : "\uFFFD";
    at += length;
  }
  return text;
}

TEST(RepairUtf8, KnownAnswers) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
      {"\x80", "\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98 x", "\uFFFD x"},
      {"\xE4\xB8\xE4\xB8\xAD", "\uFFFD\u4E2D"},
      {"\xF0\x90\xC3\xA9\xFF", "\uFFFD\u00E9\uFFFD"},
  };
  for (const auto& [bytes, text] : cases) {
    std::string out;
    EXPECT_EQ(AppendRepairedUtf8(bytes, false, &out), bytes.size());
    EXPECT_EQ(out, text);
    EXPECT_EQ(SlowRepair(bytes), text);
  }
}

// Random bytes, mostly those where the rules have their corners.
std::string RandomBytes(std::mt19937* random, size_t length) {
  constexpr uint8_t kCorners[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                  0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
                                  0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  std::string bytes;
  while (bytes.size() < length) {
    const bool corner = (*random)() % 4 != 0;
    bytes.push_back(static_cast<char>(corner ? kCorners[(*random)() % std::size(kCorners)]
                                             : (*random)() % 256));
  }
  return bytes;
}

TEST(IncrementalDecoder, AnyBytesInAnyPieces) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::string bytes = RandomBytes(&random, random() % 24);
    std::vector<std::string> tokens;
    for (size_t at = 0; at < bytes.size();) {
      tokens.push_back(bytes.substr(at, random() % 6));
      at += tokens.back().size();
    }
    const BytesTokenizer tokenizer(tokens);
    IncrementalDecoder decoder(&tokenizer, false);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string piece = decoder.Push(static_cast<TokenId>(i));
      ASSERT_TRUE(IsValidUtf8(piece));
      text += piece;
    }
    text += decoder.Flush();
    ASSERT_EQ(text, SlowRepair(bytes));
    ASSERT_EQ(decoder.Flush(), "");
  }
}

TEST(IncrementalDecoder, HoldsBackNoMoreThanACharacter) {
  const BytesTokenizer tokenizer({"a", "\xE4", "\xB8", "\xAD", "\xF0\x9F", "!"});
  IncrementalDecoder decoder(&tokenizer, false);
  EXPECT_EQ(decoder.Push(0), "a");
  EXPECT_EQ(decoder.Push(1), "");
  EXPECT_EQ(decoder.Push(2), "");
  EXPECT_EQ(decoder.Push(3), "\u4E2D");
  EXPECT_EQ(decoder.Push(4), "");
  EXPECT_EQ(decoder.Push(5), "\uFFFD!");
  EXPECT_EQ(decoder.Push(4), "");
  EXPECT_EQ(decoder.Flush(), "\uFFFD");
  EXPECT_EQ(decoder.Push(0), "a");
}

// Decoding once more, slowly: all bytes, repaired whole, and then what a beginning loses.
std::string SlowDecode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                       bool skip_special) {
  std::string bytes;
  bool first = true;
  for (const TokenId id : ids) {
    if ((skip_special && tokenizer.IsSpecial(id)) || tokenizer.TokenBytes(id).empty()) continue;
    bytes += first ? tokenizer.FirstTokenBytes(id) : tokenizer.TokenBytes(id);
    first = false;
  }
  std::string text = SlowRepair(bytes);
  const LeadingStrip strip = tokenizer.leading_strip();
  for (int i = 0; i < strip.most && text.starts_with(strip.character); ++i) {
    text.erase(0, strip.character.size());
  }
  return text;
}

class RealVocabulary : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Tokenizer> Load() {
    if (GetParam() == "demo") return MustLoad(DemoTokenizerPath());
    if (GetParam().starts_with("trained_")) return LoadTrained(GetParam().substr(8));
    return MustLoad(GoldenTokenizerPath(GetParam()));
  }
};

TEST_P(RealVocabulary, PiecesAreDecodeOfAll) {
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const bool skip_special = round % 2 == 0;
    IncrementalDecoder decoder(tokenizer.get(), skip_special);
    std::vector<TokenId> ids(random() % 60);
    std::string text;
    for (TokenId& id : ids) {
      // Ids below 300 are special tokens and single bytes.
      const uint32_t range =
          static_cast<uint32_t>(random() % 3 == 0 ? tokenizer->vocab_size() + 2 : 300);
      id = static_cast<TokenId>(random() % range);
      const std::string piece = decoder.Push(id);
      ASSERT_TRUE(IsValidUtf8(piece));
      text += piece;
    }
    text += decoder.Flush();
    ASSERT_EQ(text, tokenizer->Decode(ids, skip_special));
    // The slow way takes a hundred times as long.
    if (round < 100) {
      ASSERT_EQ(text, SlowDecode(*tokenizer, ids, skip_special));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, RealVocabulary,
                         testing::Values("demo", "gpt2", "llama2", "llama3", "qwen2", "trained_gemma",
                                         "trained_mistral", "trained_metaspace_words",
                                         "trained_metaspace_first"),
                         [](const auto& named) { return named.param; });

// What continues a text keeps the space that a text at its beginning loses.
TEST(IncrementalDecoder, TheBeginningOfATextAndItsMiddle) {
  for (const std::string name : {"mistral", "metaspace_words"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = LoadTrained(name);
    ASSERT_NE(tokenizer, nullptr);
    const std::vector<TokenId> ids = tokenizer->Encode("a gateway", {.add_special_tokens = false});
    for (const auto& [place, expected] :
         {std::pair(IncrementalDecoder::Place::kBeginsText, "a gateway"),
          std::pair(IncrementalDecoder::Place::kContinuesText, " a gateway")}) {
      IncrementalDecoder decoder(tokenizer.get(), true, place);
      std::string text;
      for (const TokenId id : ids) text += decoder.Push(id);
      EXPECT_EQ(text + decoder.Flush(), expected);
    }
  }
}

// A special token between the bytes of a character: skipped, it does not part them; kept, it does.
TEST(IncrementalDecoder, SpecialTokenInsideACharacter) {
  const auto tokenizer = MustLoad(DemoTokenizerPath());
  ASSERT_NE(tokenizer, nullptr);
  std::vector<TokenId> bytes(256, -1);
  for (TokenId id = 3; id < tokenizer->vocab_size(); ++id) {
    const std::string spelling = tokenizer->TokenBytes(id);
    if (spelling.size() == 1) bytes[static_cast<uint8_t>(spelling[0])] = id;
  }
  const std::vector<TokenId> ids = {bytes[0xE4], 1, bytes[0xB8], bytes[0xAD]};
  EXPECT_EQ(tokenizer->Decode(ids, true), "\u4E2D");
  EXPECT_EQ(tokenizer->Decode(ids, false), "\uFFFD<|end|>\uFFFD\uFFFD");
}

}  // namespace
}  // namespace augur::engine
