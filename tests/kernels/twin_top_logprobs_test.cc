// TopLogprobs of every backend against a sort and sums in long double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/twin_tolerances.h"

namespace augur::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<TokenLogprobsRow> Logprobs(Backend& backend, const std::vector<float>& logits,
                                       const std::vector<int32_t>& tokens,
                                       const std::vector<int32_t>& top) {
  const SharedArray<float> shared_logits(backend, logits);
  const SharedArray<int32_t> shared_tokens(backend, tokens), shared_top(backend, top);
  SharedArray<TokenLogprobsRow> out(backend, tokens.size());
  backend.TopLogprobs({.logits = shared_logits.data(),
                       .tokens = shared_tokens.data(),
                       .top = shared_top.data(),
                       .out = out.data(),
                       .rows = static_cast<int>(tokens.size()),
                       .vocab = static_cast<int>(logits.size() / tokens.size())});
  backend.Synchronize();
  return out.ToVector();
}

void ExpectNear(float found, long double expected) {
  if (std::isinf(expected)) {
    EXPECT_EQ(found, static_cast<float>(expected));
  } else {
    EXPECT_NEAR(found, static_cast<double>(expected), 2e-6 * (1.0 + std::fabs(double(expected))));
  }
}

void Check(const TokenLogprobsRow& found, const float* logits, int vocab, int32_t token, int top) {
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  long double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp((long double)logits[i] - logits[order[0]]);
  const auto logprob = [&](int32_t id) { return logits[id] - logits[order[0]] - std::log(sum); };
  EXPECT_EQ(found.chosen.token, token);
  ExpectNear(found.chosen.logprob, logprob(token));
  EXPECT_EQ(found.rank, std::find(order.begin(), order.end(), token) - order.begin() + 1);
  for (int i = 0; i < kMaxTopLogprobs; ++i) {
    const bool has = i < std::min(top, vocab);
    ASSERT_EQ(found.top[i].token, has ? order[i] : -1) << "place " << i;
    if (has) ExpectNear(found.top[i].logprob, logprob(order[i]));
  }
}

TEST(TwinTopLogprobsTest, LogprobsRanksAndTopAreTheReferences) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {1, 2, 19, 64, 1031, 32000, 128256}) {
      const int rows = 6;
      std::vector<float> logits = RandomFloats(size_t(rows) * vocab, vocab, 3.0f);
      for (size_t i = 0; i < logits.size(); i += 5) logits[i] = std::round(logits[i]);  // ties
      if (vocab > 20) logits[vocab + 3] = -kInfinity;
      const std::vector<int32_t> top = {20, 0, 5, 20, 1, 7};
      std::vector<int32_t> tokens(rows);
      for (int r = 0; r < rows; ++r) tokens[r] = (7919 * r + 3) % vocab;
      const auto out = Logprobs(*backend, logits, tokens, top);
      for (int r = 0; r < rows; ++r) {
        SCOPED_TRACE(name + " vocab " + std::to_string(vocab) + " row " + std::to_string(r));
        Check(out[r], logits.data() + size_t(r) * vocab, vocab, tokens[r], top[r]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TwinTopLogprobsTest, RowsThatAskForNothingAreLeftAlone) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const std::vector<float> logits = RandomFloats(300, 1);
    const auto out = Logprobs(*backend, logits, {1, 2, 3}, {3, -1, 3});
    EXPECT_EQ(out[1].rank, -1) << name;  // the 0xff of SharedArray
    EXPECT_EQ(out[2].chosen.token, 3) << name;
  }
}

TEST(TwinTopLogprobsTest, NotFiniteRowsSaySo) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int place : {0, 5, 99}) {
      std::vector<float> logits;
      for (const float bad : {float(NAN), kInfinity, 0.0f}) {
        std::vector<float> row = RandomFloats(100, 1);
        if (bad != 0.0f) row[place] = bad;
        logits.insert(logits.end(), row.begin(), row.end());
      }
      logits.insert(logits.end(), 100, -kInfinity);
      logits.insert(logits.end(), 100, 1.0f);
      const auto out = Logprobs(*backend, logits, {3, 3, 3, 3, -1}, {2, 2, 2, 2, 2});
      for (const int r : {0, 1, 3}) {
        EXPECT_TRUE(std::isnan(out[r].chosen.logprob) && std::isnan(out[r].top[1].logprob))
            << name << " row " << r;
      }
      EXPECT_FALSE(std::isnan(out[2].chosen.logprob)) << name;
      EXPECT_TRUE(std::isnan(out[4].chosen.logprob)) << name;  // of no token
      EXPECT_FALSE(std::isnan(out[4].top[0].logprob)) << name;
    }
  }
}

}  // namespace
}  // namespace augur::kernels
