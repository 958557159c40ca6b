// augur-eval: accuracy of attention policies on long-context tasks, against a running daemon.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "loadtest/attention_policies.h"
#include "loadtest/command_line.h"
#include "loadtest/completion_client.h"
#include "loadtest/evaluation.h"
#include "loadtest/evaluation_picture.h"
#include "loadtest/evaluation_report.h"
#include "loadtest/exit_status.h"
#include "loadtest/metrics_scrape.h"
#include "loadtest/perplexity.h"
#include "loadtest/stop_signals.h"
#include "loadtest/sweep_file.h"
#include "loadtest/text_file.h"
#include "loadtest/training_text.h"

// Set by the build.
#ifndef AUGUR_VERSION
#define AUGUR_VERSION "(unversioned build)"
#endif

namespace augur::loadtest {
namespace {

struct EvalFlags {
  EvaluationOptions options;
  std::vector<std::string> tasks = {"needle", "many-keys", "cities", "pairs"};
  std::vector<std::string> policies = {"dense"};
  std::vector<std::string> values;
  std::vector<int64_t> top_k_blocks;
  std::vector<int64_t> chosen_blocks;
  int64_t forced_blocks = 0;
  std::vector<std::string> documents_at;
  std::vector<std::string> compare;
  std::vector<int64_t> lengths = {8000};
  int64_t seed = 1;
  int64_t max_tokens = 16;
  std::string placement = "sentence";
  std::string json;
  std::string svg;
  std::string training_text;
  bool perplexity = false;
  std::string sweep;  // read before the others (sweep_file.h)
};

void AddPromptFlags(CLI::App* app, EvalFlags* flags) {
  EvaluationOptions* options = &flags->options;
  app->add_option("--text", options->text_files, "UTF-8 files whose paragraphs fill the documents")
      ->type_name("FILE")
      ->required();
  app->add_option("--length", flags->lengths,
                  "Tokens of a prompt, counted by the daemon; several: one after\nthe other")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 24))
      ->capture_default_str();
  app->add_option("--documents", options->documents, "Documents of each task")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app->add_option("--questions", options->questions,
                  "Questions about each document, and so facts in it; 1: a single fact")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app->add_option("--distractors", options->distractors,
                  "Facts of the same kind that nobody asks for, in each\ndocument of the tasks "
                  "that have them and do not say how many")
      ->type_name("N")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  app->add_option("--placement", flags->placement,
                  "Where a fact stands: behind a sentence, or on a line of its own")
      ->type_name("sentence|line")
      ->capture_default_str();
  app->add_option("--seed", flags->seed, "Fixes documents and questions")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 62).description(""))
      ->capture_default_str();
}

// What a grid of many runs wants beside a few.
void AddGridFlags(CLI::App* app, EvalFlags* flags) {
  EvaluationOptions* options = &flags->options;
  auto* const forced =
      app->add_option(
             "--forced-blocks", flags->forced_blocks,
             "The deployment's init_blocks + local_blocks, which --chosen-blocks leaves out")
          ->type_name("N")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 20).description(""));
  app->add_option("--chosen-blocks", flags->chosen_blocks,
                  "Instead of --top-k-blocks: blocks beyond the forced ones")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->needs(forced)
      ->excludes("--top-k-blocks");
  app->add_option("--documents-at", flags->documents_at,
                  "More documents at one length and budget (as --top-k-blocks or\n--chosen-blocks "
                  "has it), under dense at that length; 8000/16:50")
      ->type_name("LENGTH/BLOCKS:N,...")
      ->delimiter(',');
  app->add_option("--least-dense", options->least_dense,
                  "Leave out tasks of which dense gets less right; dense comes first")
      ->type_name("SHARE")
      ->check(Between(0, 1))
      ->capture_default_str();
  app->add_option("--compare", flags->compare,
                  "Policies beside each other, on the same questions, and all tasks\ntogether; "
                  "forecast:sparse")
      ->type_name("A:B,...")
      ->delimiter(',');
  app->add_option("--documents-at-once", options->documents_at_once,
                  "Documents of a task under way at a time, each with --concurrency")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
}

void AddFlags(CLI::App* app, EvalFlags* flags) {
  EvaluationOptions* options = &flags->options;
  app->add_option("--sweep", flags->sweep,
                  "YAML whose keys are these options' names, their values one or a\nlist; what the "
                  "command line says, too, counts")
      ->type_name("FILE");
  app->add_option("--address,--server", options->address, "Address of augurd")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app->add_option("--metrics", options->metrics,
                  "Where augurd exports metrics: adds bytes moved and re-use")
      ->type_name("HOST:PORT");
  AddPromptFlags(app, flags);
  app->add_option(
         "--tasks", flags->tasks,
         "Of needle, many-keys, cities, pairs, half-keys, only-keys,\nmulti-value, multi-query, "
         "variables, common-words, frequent-words,\npeople, two-steps")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--policies", flags->policies,
                  "Of dense, sparse, infinigen, forecast; dense/forecast: prompts\nunder one, "
                  "generated tokens under the other")
      ->type_name("NAME,...")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--top-k-blocks", flags->top_k_blocks,
                  "Blocks that a token attends to, forced ones included, under each\npolicy but "
                  "dense, one after the other; the daemon's choice unless given")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31).description(""));
  AddGridFlags(app, flags);
  app->add_option("--values", flags->values,
                  "Under each policy, one after the other: exact, or samples of\nvalues of a "
                  "generated token; the daemon's choice unless given")
      ->type_name("exact|N,...")
      ->delimiter(',');
  app->add_option("--max-tokens", flags->max_tokens,
                  "Tokens of an answer; a question with several gets as many times")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app->add_option("--concurrency", options->concurrency,
                  "Questions at a time, after the first of each document")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--deadline", options->call_limit_s,
                  "Give a question up after so many seconds; 0: never")
      ->type_name("SECONDS")
      ->check(Between(0, 1e6))
      ->capture_default_str();
  app->add_option("--training-text", flags->training_text,
                  "Ask nothing: write each document with its questions and answers\nbehind it, a "
                  "line each, for augur-train-forecast --data")
      ->type_name("FILE.jsonl");
  app->add_flag("--perplexity", flags->perplexity,
                "Instead of questions: how well the --text files' tokens are\nforetold under each "
                "policy, the second half of each of --documents\nsequences");
  app->add_option("--svg", flags->svg, "Draw accuracy over the KV that budgets read to this file")
      ->type_name("FILE");
  app->add_option("--json", flags->json, "Write every question and answer to this file")
      ->type_name("FILE");
  app->footer(
      "The table goes to standard output, progress to standard error.\n"
      "Exit status: 0 fine; 1 a call failed; 2 bad command line, text or length; 3 done, but the\n"
      "daemon refused a policy; 130 interrupted.");
}

const CommandLine kCommand("augur-eval");

// Every budget under every value mode.
void AddVariants(AttentionVariant variant, const std::vector<int64_t>& budgets,
                 const std::vector<std::optional<uint32_t>>& values,
                 std::vector<AttentionVariant>* variants) {
  std::vector<std::optional<uint32_t>> tried(budgets.begin(), budgets.end());
  if (budgets.empty() || variant.is_dense()) tried = {std::nullopt};
  for (const std::optional<uint32_t>& budget : tried) {
    for (const std::optional<uint32_t>& samples : values) {
      variant.top_k_blocks = budget;
      variant.value_samples = samples;
      variants->push_back(variant);
    }
  }
}

// "8000/16:50": length, budget, documents.
absl::StatusOr<DocumentsAt> DocumentsAtOf(const std::string& text, int64_t forced_blocks) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar("/:"));
  DocumentsAt at;
  int64_t blocks = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &at.length) ||
      !absl::SimpleAtoi(parts[1], &blocks) || !absl::SimpleAtoi(parts[2], &at.documents) ||
      at.documents < 1 || at.documents > 10'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--documents-at: expected length/blocks:documents, found \"", text, "\""));
  }
  at.top_k_blocks = static_cast<uint32_t>(blocks + forced_blocks);
  return at;
}

absl::Status ResolveGrid(EvalFlags* flags) {
  for (const int64_t blocks : flags->chosen_blocks) {
    flags->top_k_blocks.push_back(flags->forced_blocks + blocks);
  }
  for (const std::string& text : flags->documents_at) {
    const auto at = DocumentsAtOf(text, flags->chosen_blocks.empty() ? 0 : flags->forced_blocks);
    if (!at.ok()) return at.status();
    flags->options.documents_at.push_back(*at);
  }
  for (const std::string& text : flags->compare) {
    const std::vector<std::string> names = absl::StrSplit(text, ':');
    if (names.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("--compare: expected two policies, policy:policy, found \"", text, "\""));
    }
    const auto policy = VariantOf(names[0]), to = VariantOf(names[1]);
    if (!policy.ok()) return policy.status();
    if (!to.ok()) return to.status();
    flags->options.compared.emplace_back(*policy, *to);
  }
  return absl::OkStatus();
}

absl::Status ResolveNames(EvalFlags* flags) {
  EvaluationOptions* options = &flags->options;
  if (const absl::Status grid = ResolveGrid(flags); !grid.ok()) return grid;
  for (const std::string& name : flags->tasks) {
    const absl::StatusOr<RecallTask> task = TaskOf(name);
    if (!task.ok()) return task.status();
    options->tasks.push_back(*task);
  }
  std::vector<std::optional<uint32_t>> values;
  for (const std::string& value : flags->values) {
    uint32_t samples = 0;
    if (value != "exact" && (!absl::SimpleAtoi(value, &samples) || samples == 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--values: expected exact or a positive number, found \"", value, "\""));
    }
    values.emplace_back(samples);
  }
  if (values.empty()) values.emplace_back();
  for (const std::string& name : flags->policies) {
    const absl::StatusOr<AttentionVariant> variant = VariantOf(name);
    if (!variant.ok()) return variant.status();
    AddVariants(*variant, flags->top_k_blocks, values, &options->variants);
  }
  const absl::StatusOr<FactPlacement> placement = PlacementOf(flags->placement);
  if (!placement.ok()) return placement.status();
  options->placement = *placement;
  options->seed = static_cast<uint64_t>(flags->seed);
  options->max_tokens = static_cast<uint32_t>(flags->max_tokens);
  return CheckOptions(*options);
}

void SayProgress(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

// The daemon is there and takes every length.
int CheckDaemon(const EvalFlags& flags, CompletionClient* client, v1::GetModelResponse* model) {
  absl::StatusOr<v1::GetModelResponse> answer = client->GetModel();
  if (!answer.ok()) return kCommand.FailCall(answer.status());
  *model = *std::move(answer);
  for (const int64_t length : flags.lengths) {
    EvaluationOptions options = flags.options;
    options.length = length;
    const absl::Status fits = CheckModel(options, *model);
    if (!fits.ok()) return kCommand.Fail(kExitUsage, fits);
  }
  if (flags.options.metrics.empty()) return kExitOk;
  const auto page = ScrapeMetrics(flags.options.metrics);
  return page.ok() ? kExitOk : kCommand.Fail(kExitFailed, page.status());
}

int MakeDocuments(const EvalFlags& flags, const FillerText& filler, CompletionClient* client,
                  DocumentsOfLengths* documents) {
  for (const int64_t length : flags.lengths) {
    EvaluationOptions options = flags.options;
    options.length = length;
    absl::StatusOr<DocumentsOfTasks> of_tasks = BuildDocuments(
        options, filler, [client](const std::string& text) { return client->CountTokens(text); },
        SayProgress);
    if (absl::IsOutOfRange(of_tasks.status())) return kCommand.Fail(kExitUsage, of_tasks.status());
    if (!of_tasks.ok()) return kCommand.FailCall(of_tasks.status());
    (*documents)[length] = *std::move(of_tasks);
  }
  return kExitOk;
}

// All lengths, until one fails.
absl::Status AskAll(const EvalFlags& flags, const DocumentsOfLengths& documents,
                    CompletionClient* client, Evaluation* evaluation) {
  for (const int64_t length : flags.lengths) {
    EvaluationOptions options = flags.options;
    options.length = length;
    const absl::Status asked =
        AskPolicies(options, documents.at(length), client, SayProgress, evaluation);
    if (!asked.ok()) return asked;
  }
  return absl::OkStatus();
}

// The texts' perplexity at every length, under every variant.
int MeasurePerplexity(const EvalFlags& flags, CompletionClient* client,
                      const StopSignals& signals) {
  std::vector<uint32_t> tokens;
  for (const std::string& path : flags.options.text_files) {
    const auto text = ReadTextFile("--text", path);
    if (!text.ok()) return kCommand.Fail(kExitUsage, text.status());
    const auto ids = client->Tokenize(*text);
    if (!ids.ok()) return kCommand.FailCall(ids.status());
    tokens.insert(tokens.end(), ids->begin(), ids->end());
  }
  PerplexityReport report;
  absl::Status scored;
  for (const int64_t length : flags.lengths) {
    const auto sequences = CutSequences(tokens, length, flags.options.documents);
    if (!sequences.ok()) return kCommand.Fail(kExitUsage, sequences.status());
    scored = ScoreVariants(*sequences, flags.options.variants, client, SayProgress, &report);
    if (!scored.ok()) break;
  }
  std::fputs(PerplexityText(report).c_str(), stdout);
  const bool written =
      std::fflush(stdout) == 0 &&
      (flags.json.empty() ||
       kCommand.WriteFile("--json", flags.json, PerplexityJson(report), std::ios::trunc));
  if (signals.stopped()) return kExitInterrupted;
  if (!scored.ok()) return kCommand.FailCall(scored);
  if (!written) return kExitFailed;
  return report.refused.empty() ? kExitOk : kExitRefused;
}

int Evaluate(const EvalFlags& flags, const FillerText& filler, CompletionClient* client,
             const StopSignals& signals) {
  Evaluation evaluation;
  evaluation.compared = flags.options.compared;
  DocumentsOfLengths documents;
  int status = CheckDaemon(flags, client, &evaluation.model);
  if (status == kExitOk) status = MakeDocuments(flags, filler, client, &documents);
  if (signals.stopped()) return kExitInterrupted;
  if (status != kExitOk) return status;
  if (!flags.training_text.empty()) {
    std::string lines;
    for (const auto& [length, of_tasks] : documents) lines += TrainingLines(of_tasks);
    const bool wrote =
        kCommand.WriteFile("--training-text", flags.training_text, lines, std::ios::trunc);
    return wrote ? kExitOk : kExitFailed;
  }
  if (!flags.json.empty() && !kCommand.WriteFile("--json", flags.json, "", std::ios::app)) {
    return kExitUsage;
  }

  const absl::Status asked = AskAll(flags, documents, client, &evaluation);
  std::fputs(ReportText(evaluation).c_str(), stdout);
  bool written = std::fflush(stdout) == 0;
  if (!flags.json.empty()) {
    written =
        kCommand.WriteFile("--json", flags.json, ReportJson(flags.options, documents, evaluation),
                           std::ios::trunc) &&
        written;
  }
  if (!flags.svg.empty()) {
    written =
        kCommand.WriteFile("--svg", flags.svg, ReportSvg(evaluation), std::ios::trunc) && written;
  }
  if (signals.stopped()) return kExitInterrupted;
  if (!asked.ok()) return kCommand.FailCall(asked);
  if (!written) return kExitFailed;
  return evaluation.refused.empty() ? kExitOk : kExitRefused;
}

int Run(EvalFlags flags) {
  const absl::Status names = ResolveNames(&flags);
  if (!names.ok()) return kCommand.Fail(kExitUsage, names);
  const absl::StatusOr<FillerText> filler = FillerText::Read(flags.options.text_files);
  if (!filler.ok()) return kCommand.Fail(kExitUsage, filler.status());

  BlockStopSignals();
  CompletionClient client(flags.options.address, flags.options.call_limit_s);
  const StopSignals signals([&client] { client.Cancel(); });
  const int status = flags.perplexity ? MeasurePerplexity(flags, &client, signals)
                                      : Evaluate(flags, *filler, &client, signals);
  if (status == kExitInterrupted) std::fputs("augur-eval: interrupted\n", stderr);
  return status;
}

// With the sweep file's options before the others; else as ParseFlags.
bool ParseSweepAndFlags(CLI::App* app, int argc, char** argv, int* status) {
  const absl::StatusOr<std::vector<std::string>> arguments = WithSweepFile(argc, argv);
  if (!arguments.ok()) {
    *status = kCommand.Fail(kExitUsage, arguments.status());
    return false;
  }
  std::vector<const char*> all = {argv[0]};
  for (const std::string& argument : *arguments) all.push_back(argument.c_str());
  return ParseFlags(app, static_cast<int>(all.size()), all.data(), status);
}

}  // namespace
}  // namespace augur::loadtest

int main(int argc, char** argv) {
  CLI::App app("Measures how accurate attention policies are on long-context tasks.", "augur-eval");
  app.set_version_flag("--version", "augur-eval " AUGUR_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("augur-eval: ", error.what(), " (see augur-eval --help)\n");
  });
  augur::loadtest::EvalFlags flags;
  augur::loadtest::AddFlags(&app, &flags);
  int status = 0;
  if (!augur::loadtest::ParseSweepAndFlags(&app, argc, argv, &status)) return status;
  return augur::loadtest::Run(std::move(flags));
}
