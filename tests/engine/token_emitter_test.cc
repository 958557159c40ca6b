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

std::vector<kernels::TokenLogprobsRow> RowsOf(const std::vector<TokenId>& tokens, int top) {
  std::vector<kernels::TokenLogprobsRow> rows;
  for (const TokenId token : tokens) {
    kernels::TokenLogprobsRow row;
    row.chosen = {token, -0.5f * static_cast<float>(token)};
    row.rank = token + 1;
    for (int i = 0; i < top; ++i) row.top[i] = {i, -0.25f};
    rows.push_back(row);
  }
  return rows;
}

// However the engine cuts the prompt: pieces of a bounded size that put together are the prompt.
TEST(PromptStreamTest, PiecesAreThePromptWhereverItIsCut) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Request request;
    const int count = static_cast<int>(1 + random() % (seed % 10 == 0 ? 4000 : 60));
    for (int i = 0; i < count; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random() % tokenizer->vocab_size()));
    }
    request.output.echo = seed % 4 != 3;
    request.output.token_ids = seed % 3 == 0;
    request.output.skip_special_tokens = seed % 2 == 0;
    request.output.prompt_logprobs = seed % 5 == 0 ? -1 : static_cast<int>(seed % 5) * 5;
    const int top = request.output.prompt_logprobs;
    PromptStream stream(tokenizer.get(), request);
    std::string text;
    std::vector<TokenId> ids;
    std::vector<TokenLogprobs> logprobs;
    for (int first = 0; first < count;) {
      TokenEvent event;
      event.first_position = first;
      event.end_position = std::min(count, first + 1 + static_cast<int>(random() % 700));
      if (top >= 0) {
        const auto begin = request.prompt.begin();
        event.logprobs =
            RowsOf({begin + std::max(1, first), begin + event.end_position}, std::min(top, 20));
      }
      stream.Push(event, [&](PromptTokens piece) {
        if (top >= 0) {
          ASSERT_EQ(piece.first_position, logprobs.size());
        }
        size_t bytes = piece.text.size() + 5 * piece.token_ids.size();
        for (const TokenLogprobs& one : piece.logprobs) {
          for (const TokenLogprob& other : one.top) bytes += 24 + other.bytes.size();
        }
        EXPECT_LT(bytes, PromptStream::kMessageBytes + 4096);
        text += piece.text;
        ids.insert(ids.end(), piece.token_ids.begin(), piece.token_ids.end());
        logprobs.insert(logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
      });
      first = event.end_position;
    }
    const bool skip = request.output.skip_special_tokens;
    EXPECT_EQ(text, request.output.echo ? tokenizer->Decode(request.prompt, skip) : "");
    EXPECT_EQ(ids, request.output.echo && request.output.token_ids ? request.prompt
                                                                   : std::vector<TokenId>());
    ASSERT_EQ(logprobs.size(), top >= 0 ? request.prompt.size() : 0);
    for (size_t i = 0; i < logprobs.size(); ++i) {
      EXPECT_EQ(logprobs[i].chosen.token, i == 0 ? -1 : request.prompt[i]);
      EXPECT_EQ(logprobs[i].top.size(), i == 0 ? 0 : static_cast<size_t>(top));
      if (i == 0) continue;
      EXPECT_EQ(logprobs[i].chosen.bytes, tokenizer->TokenBytes(request.prompt[i]));
      EXPECT_EQ(logprobs[i].chosen.rank, static_cast<uint32_t>(request.prompt[i]) + 1);
    }
  }
}

// One for each token that a chunk counts, held back with it, hidden ones and those without text
// included; and not held back for ever.
TEST(TextStreamTest, LogprobsComeWithTheTokensThatAChunkCounts) {
  const std::unique_ptr<Tokenizer> tokenizer = DemoTokenizer();
  Request request;
  request.output.logprobs = 2;
  TextStream stream(tokenizer.get(), request);
  TokenId special = 0;
  while (!tokenizer->IsSpecial(special)) ++special;
  std::vector<TokenId> ids(1000, special);
  const std::vector<TokenId> end =
      tokenizer->Encode("the end", {.add_special_tokens = false, .parse_special = false});
  ids.insert(ids.end(), end.begin(), end.end());
  const auto rows = RowsOf(ids, 2);
  std::vector<TokenId> told;
  std::string ignored;
  TokenChunk chunk;
  const auto take = [&] {
    while (stream.TakeChunk(&chunk)) {
      EXPECT_EQ(chunk.logprobs.size(), chunk.num_tokens);
      EXPECT_LE(chunk.logprobs.size(), TextStream::kMaxLogprobs);
      for (const TokenLogprobs& one : chunk.logprobs) told.push_back(one.chosen.token);
    }
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    stream.Push(ids[i], /*hidden=*/i + 1 == ids.size(), &ignored, &rows[i]);
    take();
  }
  stream.Close();
  take();
  EXPECT_EQ(told, ids);
}

}  // namespace
}  // namespace augur::engine
