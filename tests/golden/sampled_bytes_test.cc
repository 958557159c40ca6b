// What sampled values save on the link: bytes that decode steps take from the host on text, tiered
// and sparse, `shared` at 128 rows against exact values, counted where they are moved. Prints the
// table of engine/attention/sampling.md.
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
constexpr int kSteps = kernels::kSanitized ? 16 : 96;

std::vector<int32_t> ReadPrompt() {
  const std::string root = AUGUR_SOURCE_DIR;
  auto tokenizer = LoadTokenizer(root + "/deploy/models/demo-9m/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::ostringstream text;
  for (const char* file : {"/deploy/handbook.txt", "/tests/e2e/corpus/mail_gateway.txt"}) {
    text << std::ifstream(root + file, std::ios::binary).rdbuf();
  }
  std::vector<int32_t> tokens = (*tokenizer)->Encode(text.str(), {});
  EXPECT_GE(tokens.size(), static_cast<size_t>(kPrompt));
  tokens.resize(kPrompt);
  return tokens;
}

struct Bytes {
  double page = 0, keys = 0, values = 0, rows = 0;  // of a step
  double total() const { return page + keys + values + rows; }
};

Bytes Decode(const std::vector<int32_t>& prompt, bool sampled, int spare_slots, ValueFetch fetch,
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
  auto sequence = model.Start(prompt, kSteps + 9, choice, memory::Residency::kTiered);
  model.Prefill(&sequence, 1024);
  model.Decode(&sequence, 8);  // slots settle
  const memory::ResidencyStats& stats = *model.kv().stats();
  const auto now = [&] {
    return Bytes{static_cast<double>(stats.page_bytes), static_cast<double>(stats.key_bytes),
                 static_cast<double>(stats.value_bytes), static_cast<double>(stats.row_bytes)};
  };
  const Bytes before = now();
  model.Decode(&sequence, kSteps);
  const Bytes after = now();
  model.Finish(sequence);
  return {(after.page - before.page) / kSteps, (after.keys - before.keys) / kSteps,
          (after.values - before.values) / kSteps, (after.rows - before.rows) / kSteps};
}

TEST(SampledBytesTest, FewerBytesOverTheLink) {
  const std::vector<int32_t> prompt = ReadPrompt();
  std::printf("spare | values | page | keys | V halves | rows | KiB a step | exact over it\n");
  for (const int spare : {0, 25}) {
    const Bytes exact = Decode(prompt, false, spare, ValueFetch::kAuto);
    const auto print = [&](const char* name, const Bytes& bytes) {
      std::printf("%d | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.2f\n", spare, name,
                  bytes.page / 1024, bytes.keys / 1024, bytes.values / 1024, bytes.rows / 1024,
                  bytes.total() / 1024, exact.total() / bytes.total());
    };
    print("exact", exact);
    const Bytes automatic = Decode(prompt, true, spare, ValueFetch::kAuto);
    print("shared, auto", automatic);
    print("shared, rows", Decode(prompt, true, spare, ValueFetch::kRows));
    print("proportional, auto",
          Decode(prompt, true, spare, ValueFetch::kAuto, ValueEstimator::kProportional));
    EXPECT_GT(exact.total(), 0);
    if (spare == 0 && !kernels::kSanitized) {
      EXPECT_GE(exact.total() / automatic.total(), 1.7);
    }
  }
}

}  // namespace
}  // namespace augur::engine
