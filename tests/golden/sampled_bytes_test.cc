// What sampled values save on the link: bytes that decode steps take from the host on text, tiered
// and sparse, `shared` at 128 rows against exact values, counted where they are moved. Every token
// is the text's own, not the model's, so that both read the same. Prints the table of
// engine/attention/sampling.md.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/support/model_driver.h"

namespace augur::engine {
namespace {

using memory::ValueFetch;
using tests::ModelDriver;

constexpr int kPrompt = kernels::kSanitized ? 2500 : 5000;
constexpr int kSettle = 8;  // steps that fill the slots
constexpr int kSteps = kernels::kSanitized ? 16 : 96;

std::vector<int32_t> ReadText() {
  const std::string root = AUGUR_SOURCE_DIR;
  auto tokenizer = LoadTokenizer(root + "/deploy/models/demo-9m/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ostringstream files;
  for (const char* file : {"/deploy/handbook.txt", "/tests/e2e/corpus/mail_gateway.txt"}) {
    files << std::ifstream(root + file, std::ios::binary).rdbuf();
  }
  std::vector<int32_t> tokens = (*tokenizer)->Encode(files.str(), {});
  EXPECT_GE(tokens.size(), static_cast<size_t>(kPrompt + kSettle + kSteps));
  return tokens;
}

struct Bytes {
  double page = 0, keys = 0, values = 0, rows = 0;  // of a step
  double total() const { return page + keys + values + rows; }
};

Bytes Decode(const std::vector<int32_t>& text, bool sampled, int spare_slots, ValueFetch fetch,
             ValueEstimator estimator = ValueEstimator::kShared) {
  const AttentionChoice choice{.prefill = AttentionPolicy::kSparse,
                               .decode = AttentionPolicy::kSparse,
                               .values = {.sampled = sampled}};
  ModelDriver model(
      {.folder = std::string(AUGUR_SOURCE_DIR) + "/deploy/models/demo-9m",
       .threads = 1,
       .kv_dtype = kernels::DType::kBF16,
       .max_rows = 1024,
       .max_segments = 1,
       .frames = 400,
       .host_blocks = 200,
       .max_top_k = choice.budget.top_k,
       .num_slots = choice.budget.top_k + spare_slots,
       .values = {.sampled = true,
                  .estimator = estimator,
                  .budget = estimator == ValueEstimator::kShared ? kernels::ValueBudget::kRows
                                                                 : kernels::ValueBudget::kDraws,
                  .samples = {128},
                  .fetch = fetch}});
  auto sequence = model.Start({text.begin(), text.begin() + kPrompt}, kSettle + kSteps, choice,
                              memory::Residency::kTiered);
  model.Prefill(&sequence, 1024);
  const auto read_on = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      sequence.tokens.push_back(text[sequence.tokens.size()]);
      model.StepOne(&sequence, 1);
    }
  };
  read_on(kSettle);
  const memory::ResidencyStats& stats = *model.kv().stats();
  const auto now = [&] {
    return Bytes{static_cast<double>(stats.page_bytes), static_cast<double>(stats.key_bytes),
                 static_cast<double>(stats.value_bytes), static_cast<double>(stats.row_bytes)};
  };
  const Bytes before = now();
  read_on(kSteps);
  const Bytes after = now();
  model.Finish(sequence);
  return {(after.page - before.page) / kSteps, (after.keys - before.keys) / kSteps,
          (after.values - before.values) / kSteps, (after.rows - before.rows) / kSteps};
}

TEST(SampledBytesTest, FewerBytesOverTheLink) {
  const std::vector<int32_t> text = ReadText();
  std::printf("spare | values | page | keys | V halves | rows | KiB a step | exact over it\n");
  for (const int spare : {0, 25}) {
    const Bytes exact = Decode(text, false, spare, ValueFetch::kAuto);
    const auto print = [&](const char* name, const Bytes& bytes) {
      std::printf("%d | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.2f\n", spare, name,
                  bytes.page / 1024, bytes.keys / 1024, bytes.values / 1024, bytes.rows / 1024,
                  bytes.total() / 1024, exact.total() / bytes.total());
    };
    print("exact", exact);
    const Bytes automatic = Decode(text, true, spare, ValueFetch::kAuto);
    print("shared, auto", automatic);
    print("shared, rows", Decode(text, true, spare, ValueFetch::kRows));
    print("proportional, auto",
          Decode(text, true, spare, ValueFetch::kAuto, ValueEstimator::kProportional));
    EXPECT_GT(exact.total(), 0);
    if (spare == 0 && !kernels::kSanitized) {
      EXPECT_GE(exact.total() / automatic.total(), 1.7);
    }
  }
}

}  // namespace
}  // namespace augur::engine
