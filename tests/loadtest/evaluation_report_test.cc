// What rows say about runs, how the table lines up, and which options are refused before anything
// is asked.
#include "loadtest/evaluation_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "loadtest/attention_policies.h"
#include "loadtest/evaluation_picture.h"
#include "loadtest/perplexity.h"
#include "loadtest/report_table.h"
#include "loadtest/sweep_file.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

AskedQuestion Asked(int document, int question, bool exact, double first_ms) {
  AskedQuestion asked;
  asked.document = document;
  asked.question = question;
  asked.cold = question == 0;
  asked.exact = exact;
  asked.answer.text = " Oslo.";
  asked.answer.completion_tokens = 5;
  asked.answer.first_token_ms = first_ms;
  asked.answer.total_ms = first_ms + 20;
  return asked;
}

Evaluation TwoRuns() {
  Evaluation evaluation;
  PolicyRun dense{RecallTask::kCities, {.policy = v1::ATTENTION_POLICY_DENSE}, 8000};
  dense.questions = {Asked(0, 0, true, 900), Asked(0, 1, true, 30), Asked(1, 0, true, 1100),
                     Asked(1, 1, false, 50)};
  PolicyRun sparse = dense;
  sparse.variant.policy = v1::ATTENTION_POLICY_SPARSE;
  sparse.questions[0].exact = false;
  sparse.counters = CounterGrowth({},
                                  {{"augur_transfer_bytes_total", {{"kind", "fetch"}}, 2048},
                                   {"augur_kv_reused_blocks_total", {}, 3},
                                   {"augur_kv_chosen_blocks_total", {}, 4}},
                                  WatchedCounters());
  evaluation.runs = {dense, sparse};
  evaluation.refused = {{{.policy = v1::ATTENTION_POLICY_FORECAST}, "not here"}};
  evaluation.complete = true;
  return evaluation;
}

TEST(Summarize, PartsColdFromWarmAndComparesWithDense) {
  const Evaluation evaluation = TwoRuns();
  const RunSummary dense = Summarize(evaluation.runs[0], &evaluation.runs[0]);
  EXPECT_EQ(dense.n, 4);
  EXPECT_EQ(dense.right, 3);
  EXPECT_FALSE(dense.to_dense);
  EXPECT_EQ(dense.cold_first_token_ms, 1000);
  EXPECT_EQ(dense.warm_first_token_ms, 40);
  EXPECT_NEAR(*dense.tokens_per_second, 200, 1e-9);  // 4 tokens in 20 ms each
  EXPECT_FALSE(dense.moved_bytes);
  const RunSummary sparse = Summarize(evaluation.runs[1], &evaluation.runs[0]);
  ASSERT_TRUE(sparse.to_dense);
  EXPECT_EQ(sparse.to_dense->difference, -0.25);
  EXPECT_EQ(sparse.to_dense->lost, 1);
  EXPECT_EQ(sparse.moved_bytes, 2048);
  EXPECT_EQ(sparse.reused_share, 0.75);
}

TEST(ReportText, HasARowForEachRunAndNamesRefusals) {
  const std::string text = ReportText(TwoRuns());
  EXPECT_NE(text.find("\ncities  dense   4  0.750"), std::string::npos) << text;
  EXPECT_NE(text.find("\ncities  sparse  4  0.500"), std::string::npos) << text;
  EXPECT_NE(text.find("  2.0 KiB   0.750\n"), std::string::npos) << text;
  EXPECT_NE(text.find("augur_transfer_bytes_total{kind=\"fetch\"}"), std::string::npos) << text;
  EXPECT_NE(text.find("forecast is not in the table, the daemon refused it: not here"),
            std::string::npos)
      << text;
}

TEST(ReportJson, HoldsEveryQuestion) {
  const Document document = {"text", {{"\nQ1", "Oslo", 0.1}, {"\nQ2", "Lima", 0.9}}, 7};
  const DocumentsOfLengths documents = {{8000, {{RecallTask::kCities, {document, document}}}}};
  const auto json =
      nlohmann::json::parse(ReportJson(EvaluationOptions(), documents, TwoRuns()), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["refused"][0]["policy"], "forecast");
  ASSERT_EQ(json["runs"].size(), 2u);
  EXPECT_EQ(json["runs"][1]["summary"]["to_dense"]["lost"], 1);
  EXPECT_TRUE(json["runs"][0]["counters"].is_null());
  const auto& question = json["runs"][1]["questions"][3];
  EXPECT_EQ(question["policy"], "sparse");
  EXPECT_EQ(question["answer"], "Lima");
  EXPECT_EQ(question["completion"], " Oslo.");
  EXPECT_EQ(question["first_token_ms"], 50);
}

// Dense was asked more than the others, and one task says nothing.
Evaluation Grid() {
  Evaluation evaluation;
  const auto add = [&](RecallTask task, v1::AttentionPolicy policy, uint32_t blocks,
                       const std::string& right) {
    PolicyRun run{task, {.policy = policy}, 8000};
    if (blocks > 0) run.variant.top_k_blocks = blocks;
    for (size_t i = 0; i < right.size(); ++i) {
      run.questions.push_back(Asked(static_cast<int>(i), 0, right[i] == '+', 100));
    }
    evaluation.runs.push_back(run);
  };
  add(RecallTask::kVariables, v1::ATTENTION_POLICY_DENSE, 0, "---+");
  for (const RecallTask task : {RecallTask::kNeedle, RecallTask::kPairs}) {
    add(task, v1::ATTENTION_POLICY_DENSE, 0, "+++-");
    add(task, v1::ATTENTION_POLICY_SPARSE, 13, "+-");
    add(task, v1::ATTENTION_POLICY_SPARSE, 25, "+--+");
    add(task, v1::ATTENTION_POLICY_FORECAST, 25, "++-+");
  }
  evaluation.left_out = {{RecallTask::kVariables, 8000, 0.25},
                         {RecallTask::kHalfKeys, 8000, std::nullopt}};
  evaluation.compared = {
      {{.policy = v1::ATTENTION_POLICY_FORECAST}, {.policy = v1::ATTENTION_POLICY_SPARSE}}};
  evaluation.complete = true;
  return evaluation;
}

TEST(ReportText, ComparesTheQuestionsThatBothWereAsked) {
  const Evaluation evaluation = Grid();
  const RunSummary few = Summarize(evaluation.runs[2], &evaluation.runs[1]);
  ASSERT_TRUE(few.to_dense);
  EXPECT_EQ(few.to_dense->n, 2);
  EXPECT_EQ(few.to_dense->lost, 1);
  EXPECT_EQ(few.to_dense->gained, 0);

  const std::string text = ReportText(evaluation);
  const std::string pooled = text.substr(text.find("all tasks"));
  EXPECT_NE(pooled.find("sparse 13 blocks    4  0.500"), std::string::npos) << text;
  EXPECT_NE(pooled.find("dense               8  0.750"), std::string::npos) << text;
  // Forecast gains one question of four in each task.
  const std::string compared = text.substr(text.find("difference"));
  EXPECT_NE(compared.find("needle     forecast 25 blocks  sparse  4      +0.250"),
            std::string::npos)
      << text;
  EXPECT_NE(compared.find("all tasks  forecast 25 blocks  sparse  8      +0.250"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("variables at 8000 tokens does not count: 0.250 right under dense."),
            std::string::npos);
  EXPECT_NE(text.find("half-keys at 8000 tokens does not count: its facts do not fit."),
            std::string::npos);
  EXPECT_EQ(ReportSvg(evaluation).find(">variables<"), std::string::npos);
}

TEST(Documents, MoreOfThemAtOneLengthAndBudget) {
  EvaluationOptions options;
  options.documents = 4;
  options.documents_at = {{8000, 25, 50}};
  options.length = 8000;
  const AttentionVariant dense{.policy = v1::ATTENTION_POLICY_DENSE};
  AttentionVariant sparse{.policy = v1::ATTENTION_POLICY_SPARSE};
  sparse.top_k_blocks = 13;
  EXPECT_EQ(DocumentsOf(options, dense), 50);
  EXPECT_EQ(DocumentsOf(options, sparse), 4);
  sparse.top_k_blocks = 25;
  EXPECT_EQ(DocumentsOf(options, sparse), 50);
  options.length = 4000;
  EXPECT_EQ(DocumentsOf(options, dense), 4);
  EXPECT_EQ(DocumentsOf(options, sparse), 4);
}

TEST(Perplexity, DifferencesArePairedOverStretches) {
  std::vector<double> here(64 * 4, 2.0), base(64 * 4, 1.5);
  for (size_t i = 0; i < 64; ++i) here[i] = 1.5;  // differences 0, 0.5, 0.5, 0.5
  const auto found = CompareNats(here, base);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->difference, 0.375, 1e-12);
  EXPECT_NEAR(found->interval.high - found->difference, 1.959964 * 0.25 / 2, 1e-9);
  EXPECT_FALSE(CompareNats(here, {}));
  EXPECT_FALSE(CompareNats({1, 2}, {1, 2}));

  TokenSequence tokens(70, 5);
  EXPECT_EQ(CutSequences(tokens, 30, 9)->size(), 2u);
  EXPECT_EQ(CutSequences(tokens, 30, 1)->size(), 1u);
  EXPECT_FALSE(CutSequences(tokens, 71, 1).ok());

  PerplexityReport report;
  report.runs = {{{.policy = v1::ATTENTION_POLICY_DENSE}, 512, base},
                 {{.policy = v1::ATTENTION_POLICY_SPARSE}, 512, here}};
  const std::string text = PerplexityText(report);
  EXPECT_NE(text.find("+0.3750  +0.1300..+0.6200"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(PerplexityJson(report));
  EXPECT_NEAR(json["perplexity"][0]["perplexity"], std::exp(1.5), 1e-9);
}

TEST(ReportTable, LinesUp) {
  ReportTable table({"name", "n"}, 1);
  table.AddRow({"a", "1000"});
  table.AddRow({"longer", "2"});
  EXPECT_EQ(table.Text(), "name       n\na       1000\nlonger     2\n");
}

TEST(ReportTable, NumbersForPeople) {
  EXPECT_EQ(FormatShare(0.9583), "0.958");
  EXPECT_EQ(FormatDifference(-0.0), "+0.000");
  EXPECT_EQ(FormatDifference(-0.0251), "-0.025");
  EXPECT_EQ(FormatMilliseconds(0.84), "0.8 ms");
  EXPECT_EQ(FormatMilliseconds(42.2), "42 ms");
  EXPECT_EQ(FormatMilliseconds(3120), "3.1 s");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(3.0 * (1 << 30)), "3.0 GiB");
}

TEST(AttentionPolicies, NamesAreThoseOfTheApi) {
  EXPECT_EQ(*PolicyOf("dense"), v1::ATTENTION_POLICY_DENSE);
  EXPECT_EQ(*PolicyOf("forecast"), v1::ATTENTION_POLICY_FORECAST);
  EXPECT_EQ(PolicyName(v1::ATTENTION_POLICY_INFINIGEN), "infinigen");
  EXPECT_EQ(PolicyOf("unspecified").status().message().find("--policies: \"unspecified\" is no"),
            0u);
}

TEST(CheckOptions, RefusesDoublesAndTooManyFacts) {
  EvaluationOptions options;
  options.tasks = {RecallTask::kCities};
  options.variants = {{.policy = v1::ATTENTION_POLICY_DENSE}};
  EXPECT_TRUE(CheckOptions(options).ok());
  options.questions = 30;
  EXPECT_EQ(CheckOptions(options).message(),
            "--questions and --distractors: 38 facts in a document of task cities, at most 18");
  options.questions = 10;
  options.tasks = {RecallTask::kNeedle, RecallTask::kNeedle};
  EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options)));
  options.tasks = {RecallTask::kNeedle};
  options.variants.push_back(options.variants.front());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options)));
}

TEST(AttentionVariants, NamesGoBothWays) {
  for (const char* name : {"dense", "sparse", "dense/forecast"}) {
    EXPECT_EQ(VariantName(*VariantOf(name)), name);
  }
  AttentionVariant variant = *VariantOf("sparse");
  variant.top_k_blocks = 16;
  variant.value_samples = 0;
  EXPECT_EQ(VariantName(variant), "sparse 16 blocks exact");
  EXPECT_FALSE(VariantOf("dense/").ok());
  EXPECT_FALSE(VariantOf("sparse/nothing").ok());
  EXPECT_TRUE(VariantOf("dense/dense")->is_dense());
  EXPECT_FALSE(VariantOf("dense/sparse")->is_dense());
}

// Each length is compared with dense of its own.
TEST(Report, LengthsStandApart) {
  Evaluation evaluation = TwoRuns();
  for (const PolicyRun& run : TwoRuns().runs) {
    evaluation.runs.push_back(run);
    evaluation.runs.back().length = 2000;
    for (AskedQuestion& asked : evaluation.runs.back().questions) asked.exact = false;
  }
  const std::string text = ReportText(evaluation);
  EXPECT_NE(text.find("dense, 8000 tokens"), std::string::npos) << text;
  EXPECT_NE(text.find("sparse, 2000 tokens  4  0.000"), std::string::npos) << text;
  EXPECT_NE(text.find("  +0.000  "), std::string::npos) << text;
}

TEST(ReportSvg, ALineForEachPolicyAndAPointForEachBudget) {
  Evaluation evaluation = TwoRuns();
  evaluation.runs[1].variant.top_k_blocks = 25;
  evaluation.runs.push_back(evaluation.runs[1]);
  evaluation.runs[2].variant.top_k_blocks = 50;
  const std::string svg = ReportSvg(evaluation);
  EXPECT_EQ(svg.find("<svg"), 0u);
  EXPECT_NE(svg.find(">cities<"), std::string::npos);
  EXPECT_NE(svg.find("sparse 25 blocks: 0.500 (0.150 to 0.850) of 4"), std::string::npos) << svg;
  EXPECT_NE(svg.find("sparse 50 blocks"), std::string::npos);
  EXPECT_NE(svg.find("dense: 0.750"), std::string::npos);
}

TEST(SweepFile, KeysAreOptions) {
  const auto arguments =
      SweepArguments("s.yaml", "length: [2000, 4000]\npolicies: dense\n\ntext: [a b.txt, c.txt]\n");
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(*arguments, (std::vector<std::vector<std::string>>{{"--length", "2000", "4000"},
                                                               {"--policies", "dense"},
                                                               {"--text", "a b.txt", "c.txt"}}));
  const auto wrong = [](const std::string& text) {
    return std::string(SweepArguments("s.yaml", text).status().message());
  };
  EXPECT_EQ(wrong("a: 1\nb: {c: 2}\n").find("s.yaml:2: b: expected a value or a list"), 0u);
  EXPECT_EQ(wrong("a: []\n").find("s.yaml:1: a: expected at least one value"), 0u);
  EXPECT_EQ(wrong("- 1\n").find("s.yaml:1: expected keys with values"), 0u);
  EXPECT_EQ(wrong("a: [1\n").find("s.yaml:"), 0u);
}

TEST(SweepFile, TheCommandLineCountsMore) {
  char name[] =
      "/tmp/augur-sweep-XX"
      "XXXX";
  close(mkstemp(name));
  std::ofstream(name) << "length: 2000\nseed: 4\n";
  const char* const argv[] = {"augur-eval", "--sweep", name, "--length=100"};
  const auto arguments = WithSweepFile(4, argv);
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(*arguments, (std::vector<std::string>{"--seed", "4", "--sweep", name, "--length=100"}));
  unlink(name);
  EXPECT_FALSE(WithSweepFile(4, argv).ok());
  const std::string folder = testing::TempDir();
  const char* const of_folder[] = {"augur-eval", "--sweep", folder.c_str()};
  EXPECT_FALSE(WithSweepFile(3, of_folder).ok());
}

TEST(CheckModel, LengthAndAnswerMustFitTheContext) {
  EvaluationOptions options;
  options.length = 8177;
  v1::GetModelResponse model;
  model.set_model("m");
  model.set_max_context(8192);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckModel(options, model)));  // no text
  model.set_text(true);
  EXPECT_EQ(CheckModel(options, model).message(),
            "--length: 8177 tokens with 16 of --max-tokens, at most 8192 fit m");
  options.length = 8176;
  EXPECT_TRUE(CheckModel(options, model).ok());
}

}  // namespace
}  // namespace augur::loadtest
