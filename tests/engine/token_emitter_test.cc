// Stop strings and UTF-8 on the way from ids to text, against a slow reference over random token
// streams: byte tokens, cuts inside characters, invalid bytes, stops across token edges, hidden
// tokens.
#include "engine/token_emitter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {
namespace {

std::unique_ptr<Tokenizer> DemoTokenizer() {
  auto tokenizer =
      LoadTokenizer(std::string(AUGUR_SOURCE_DIR) + "/deploy/models/demo-9m/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

struct Shown {
  std::string text;
  std::string matched;  // empty: no stop string
  size_t tokens = 0;    // accounted for in chunks
  size_t fed = 0;       // tokens taken until the end
};

Shown RunStream(const Tokenizer& tokenizer, const Request& request,
                const std::vector<TokenId>& ids) {
  TextStream stream(&tokenizer, request);
  Shown shown;
  TokenChunk chunk;
  const auto take = [&] {
    while (stream.TakeChunk(&chunk)) {
      shown.text += chunk.text;
      shown.tokens += chunk.num_tokens;
    }
  };
  for (const TokenId id : ids) {
    ++shown.fed;
    const bool stopped = stream.Push(id, /*hidden=*/false, &shown.matched);
    take();
    if (stopped) return shown;
  }
  stream.Close();
  take();
  return shown;
}

// Decodes ever longer beginnings in one go and looks for the first stop string to be complete.
Shown RunReference(const Tokenizer& tokenizer, const Request& request,
                   const std::vector<TokenId>& ids) {
  Shown shown;
  const std::vector<std::string>& stops = request.stopping.stop;
  const std::string all = tokenizer.Decode(ids, true);
  size_t best_end = std::string::npos;
  size_t best_begin = 0;
  for (const std::string& stop : stops) {
    const size_t begin = all.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (best_end == std::string::npos || end < best_end ||
        (end == best_end && begin < best_begin)) {
      best_end = end;
      best_begin = begin;
      shown.matched = stop;
    }
  }
  shown.text = best_end == std::string::npos ? all : all.substr(0, best_begin);
  return shown;
}

TEST(TextStreamTest, EqualsASlowReferenceOnRandomStreams) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  // Ids of single bytes, so that characters are cut everywhere and invalid sequences arise.
  std::vector<TokenId> byte_ids;
  for (TokenId id = 3; id < tokenizer->vocab_size() && byte_ids.size() < 256; ++id) {
    if (tokenizer->TokenBytes(id).size() == 1) byte_ids.push_back(id);
  }
  ASSERT_EQ(byte_ids.size(), 256u);
  int matches = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Request request;
    std::vector<TokenId> ids;
    const std::string alphabet = "ab\u00e9\u4f60\U0001F600 c";
    for (uint32_t i = 0, count = 1 + random() % 40; i < count; ++i) {
      switch (random() % 4) {
        case 0:
          ids.push_back(byte_ids[random() % 256]);
          break;
        case 1:
          ids.push_back(static_cast<TokenId>(random() % tokenizer->vocab_size()));
          break;
        default: {
          const std::vector<TokenId> piece =
              tokenizer->Encode(alphabet, {.add_special_tokens = false, .parse_special = false});
          ids.push_back(piece[random() % piece.size()]);
        }
      }
    }
    const std::string whole = tokenizer->Decode(ids, true);
    for (uint32_t i = 0, count = random() % 4; i < count && !whole.empty(); ++i) {
      // Stops that really occur, cut at character starts, and some that do not.
      size_t begin = random() % whole.size();
      while (begin > 0 && (whole[begin] & 0xc0) == 0x80) --begin;
      size_t end = std::min(whole.size(), begin + 1 + random() % 8);
      while (end < whole.size() && (whole[end] & 0xc0) == 0x80) ++end;
      request.stopping.stop.push_back(random() % 5 == 0 ? "never there"
                                                        : whole.substr(begin, end - begin));
    }
    const Shown found = RunStream(*tokenizer, request, ids);
    const Shown expected = RunReference(*tokenizer, request, ids);
    ASSERT_EQ(found.text, expected.text);
    // A stop that only a repaired tail completes ends with the sequence, without a name.
    if (found.fed < ids.size()) {
      ASSERT_EQ(found.matched, expected.matched);
    }
    ASSERT_EQ(found.tokens, found.fed);
    matches += found.matched.empty() ? 0 : 1;
  }
  EXPECT_GT(matches, 500);
}

TEST(TextStreamTest, EveryTokenIsAccountedForAndHiddenOnesShowNoText) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  Request request;
  request.output.token_ids = true;
  TextStream stream(tokenizer.get(), request);
  const std::vector<TokenId> ids =
      tokenizer->Encode("two words", {.add_special_tokens = false, .parse_special = true});
  std::string ignored;
  std::string text;
  std::vector<TokenId> shown;
  uint32_t tokens = 0;
  TokenChunk chunk;
  for (size_t i = 0; i < ids.size(); ++i) {
    stream.Push(ids[i], /*hidden=*/i + 1 == ids.size(), &ignored);
    while (stream.TakeChunk(&chunk)) {
      text += chunk.text;
      tokens += chunk.num_tokens;
      shown.insert(shown.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    }
  }
  EXPECT_EQ(shown, ids);
  EXPECT_EQ(tokens, ids.size());
  EXPECT_EQ(text, tokenizer->Decode({ids.begin(), ids.end() - 1}, true));
}

TEST(TextStreamTest, WithoutATokenizerIdsFlow) {
  Request request;
  request.output.token_ids = true;
  request.output.text = false;
  TextStream stream(nullptr, request);
  std::string ignored;
  stream.Push(42, false, &ignored);
  TokenChunk chunk;
  ASSERT_TRUE(stream.TakeChunk(&chunk));
  EXPECT_EQ(chunk.token_ids, std::vector<TokenId>{42});
  EXPECT_TRUE(chunk.text.empty());
  stream.Close();
  EXPECT_FALSE(stream.TakeChunk(&chunk));
}

}  // namespace
}  // namespace augur::engine
