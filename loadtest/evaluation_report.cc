#include "loadtest/evaluation_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/attention_policies.h"
#include "loadtest/report_table.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 2;  // of the JSON; grows when a reader of the old one would be wrong

// What a run is compared with: sampled values with exact ones of the same variant, anything else
// with dense.
const PolicyRun* BaseRun(const Evaluation& evaluation, const PolicyRun& of) {
  const bool sampled = of.variant.value_samples.value_or(0) > 0;
  for (const PolicyRun& run : evaluation.runs) {
    if (run.task != of.task || run.length != of.length) continue;
    if (run.variant.value_samples.value_or(0) > 0) continue;
    AttentionVariant exact = of.variant;
    exact.value_samples = run.variant.value_samples;
    if (sampled ? run.variant == exact : run.variant.is_dense()) return &run;
  }
  return nullptr;
}

bool HasSeveralLengths(const Evaluation& evaluation) {
  for (const PolicyRun& run : evaluation.runs) {
    if (run.length != evaluation.runs.front().length) return true;
  }
  return false;
}

// With the length, where that tells runs apart.
std::string RunName(const Evaluation& evaluation, const PolicyRun& run) {
  const std::string name = VariantName(run.variant);
  return HasSeveralLengths(evaluation) ? absl::StrCat(name, ", ", run.length, " tokens") : name;
}

// Of the first `count` questions: a base may have been asked more.
std::vector<bool> RightOnes(const PolicyRun& run, size_t count) {
  std::vector<bool> right;
  for (const AskedQuestion& asked : run.questions) {
    if (right.size() < count) right.push_back(asked.exact);
  }
  return right;
}

bool IsLeftOut(const Evaluation& evaluation, const PolicyRun& run) {
  return std::any_of(evaluation.left_out.begin(), evaluation.left_out.end(),
                     [&](const LeftOut& one) { return one.IsOf(run); });
}

// One variant at one length, all tasks that count, beside what each run is compared with.
struct Pool {
  const PolicyRun* first = nullptr;  // names it
  int tasks = 0;
  std::vector<bool> right = {}, base_right = {};

  void Add(const PolicyRun& run, const PolicyRun* base) {
    ++tasks;
    for (const bool one : RightOnes(run, run.questions.size())) right.push_back(one);
    if (base == nullptr || base == &run) return;
    for (const bool one : RightOnes(*base, run.questions.size())) base_right.push_back(one);
  }
  std::optional<PairedDifference> Compare() const {
    if (base_right.size() != right.size()) return std::nullopt;
    return ComparePaired(right, base_right);
  }
};

Pool* PoolOf(const PolicyRun& run, std::vector<Pool>* pools) {
  for (Pool& pool : *pools) {
    if (pool.first->variant == run.variant && pool.first->length == run.length) return &pool;
  }
  pools->push_back({.first = &run});
  return &pools->back();
}

std::string FormatInterval(const Interval& interval) {
  return absl::StrFormat("%.3f..%.3f", interval.low, interval.high);
}

std::string FormatSigned(const Interval& interval) {
  return absl::StrCat(FormatDifference(interval.low), "..", FormatDifference(interval.high));
}

// `format` of the value, or "-".
template <typename Format>
std::string OrUnknown(const std::optional<double>& value, Format format) {
  return value ? format(*value) : kUnknown;
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string RunsTable(const Evaluation& evaluation) {
  ReportTable table({"task", "policy", "n", "exact", "95 %", "to base", "95 % paired", "first cold",
                     "first warm", "tokens/s", "moved", "re-use"},
                    2);
  for (const PolicyRun& run : evaluation.runs) {
    const RunSummary summary = Summarize(run, BaseRun(evaluation, run));
    const auto& to_dense = summary.to_dense;
    table.AddRow({TaskName(run.task), RunName(evaluation, run), absl::StrCat(summary.n),
                  FormatShare(static_cast<double>(summary.right) / static_cast<double>(summary.n)),
                  FormatInterval(summary.interval),
                  to_dense ? FormatDifference(to_dense->difference) : kUnknown,
                  to_dense ? FormatSigned(to_dense->interval) : kUnknown,
                  FormatMilliseconds(summary.cold_first_token_ms),
                  OrUnknown(summary.warm_first_token_ms, FormatMilliseconds),
                  OrUnknown(summary.tokens_per_second,
                            [](double value) { return absl::StrFormat("%.0f", value); }),
                  OrUnknown(summary.moved_bytes, FormatBytes),
                  OrUnknown(summary.reused_share, FormatShare)});
  }
  return table.Text();
}

// All tasks together, each variant beside what it is compared with: the mean of the tasks, since
// they have equally many questions. Empty for a single task.
std::string PooledTable(const Evaluation& evaluation) {
  ReportTable table({"all tasks", "n", "exact", "95 %", "to base", "95 % paired"}, 1);
  std::vector<Pool> pools;
  for (const PolicyRun& run : evaluation.runs) {
    if (IsLeftOut(evaluation, run)) continue;
    PoolOf(run, &pools)->Add(run, BaseRun(evaluation, run));
  }
  bool any = false;
  for (const Pool& pool : pools) {
    any |= pool.tasks > 1;
    const auto count = std::count(pool.right.begin(), pool.right.end(), true);
    const auto n = static_cast<int64_t>(pool.right.size());
    const std::optional<PairedDifference> paired = pool.Compare();
    table.AddRow({RunName(evaluation, *pool.first), absl::StrCat(n),
                  FormatShare(static_cast<double>(count) / static_cast<double>(n)),
                  FormatInterval(WilsonInterval(count, n)),
                  paired ? FormatDifference(paired->difference) : kUnknown,
                  paired ? FormatSigned(paired->interval) : kUnknown});
  }
  return any ? "\n" + table.Text() : "";
}

// The run of another policy on the same questions, in the same budget and value mode.
const PolicyRun* Counterpart(const Evaluation& evaluation, const PolicyRun& of,
                             const AttentionVariant& policy) {
  AttentionVariant wanted = of.variant;
  wanted.policy = policy.policy;
  wanted.prefill = policy.prefill;
  for (const PolicyRun& run : evaluation.runs) {
    if (run.task == of.task && run.length == of.length && run.variant == wanted) return &run;
  }
  return nullptr;
}

void AddCompared(const std::string& task, const std::string& name, const std::string& to,
                 const PairedDifference& paired, ReportTable* table) {
  table->AddRow({task, name, to, absl::StrCat(paired.n), FormatDifference(paired.difference),
                 FormatSigned(paired.interval)});
}

// Pairs that were asked for: each task, then all of them together. Empty where there are none.
std::string ComparedTable(const Evaluation& evaluation) {
  ReportTable table({"task", "policy", "to", "n", "difference", "95 % paired"}, 3);
  bool any = false;
  for (const auto& [policy, to] : evaluation.compared) {
    std::vector<Pool> pools;
    for (const PolicyRun& run : evaluation.runs) {
      const PolicyRun* const base = Counterpart(evaluation, run, to);
      const bool is_policy =
          run.variant.policy == policy.policy && run.variant.prefill == policy.prefill;
      if (!is_policy || base == nullptr || IsLeftOut(evaluation, run)) continue;
      Pool one{.first = &run};
      one.Add(run, base);
      if (!one.Compare()) continue;  // an interrupted run
      any = true;
      PoolOf(run, &pools)->Add(run, base);
      AddCompared(TaskName(run.task), RunName(evaluation, run), VariantName(to), *one.Compare(),
                  &table);
    }
    for (const Pool& pool : pools) {
      AddCompared("all tasks", RunName(evaluation, *pool.first), VariantName(to), *pool.Compare(),
                  &table);
    }
  }
  return any ? "\n" + table.Text() : "";
}

// Empty where the daemon has none of the counters.
std::string CountersTable(const Evaluation& evaluation) {
  ReportTable table({"task", "policy", "counter", "growth"}, 3);
  bool any = false;
  for (const PolicyRun& run : evaluation.runs) {
    if (!run.counters) continue;
    for (const auto& [sample, growth] : run.counters->samples()) {
      any = true;
      table.AddRow(
          {TaskName(run.task), RunName(evaluation, run), sample, absl::StrFormat("%.0f", growth)});
    }
  }
  return any ? "\n" + table.Text() : "";
}

Json VariantJson(const AttentionVariant& variant) {
  Json json = {{"policy", PolicyName(variant.policy)},
               {"prefill_policy", nullptr},
               {"top_k_blocks", OrNull(variant.top_k_blocks)},
               {"value_samples", OrNull(variant.value_samples)}};
  if (variant.prefill != v1::ATTENTION_POLICY_UNSPECIFIED) {
    json["prefill_policy"] = PolicyName(variant.prefill);
  }
  return json;
}

Json OptionsJson(const EvaluationOptions& options) {
  return {{"address", options.address},
          {"metrics", options.metrics},
          {"text", options.text_files},
          {"documents", options.documents},
          {"questions", options.questions},
          {"distractors", options.distractors},
          {"placement", options.placement == FactPlacement::kLine ? "line" : "sentence"},
          {"seed", options.seed},
          {"concurrency", options.concurrency},
          {"max_tokens", options.max_tokens}};
}

Json SummaryJson(const RunSummary& summary) {
  Json json = {{"n", summary.n},
               {"right", summary.right},
               {"wilson_95", {summary.interval.low, summary.interval.high}},
               {"cold_first_token_ms", summary.cold_first_token_ms},
               {"warm_first_token_ms", OrNull(summary.warm_first_token_ms)},
               {"tokens_per_second", OrNull(summary.tokens_per_second)},
               {"moved_bytes", OrNull(summary.moved_bytes)},
               {"reused_share", OrNull(summary.reused_share)},
               {"to_dense", nullptr}};
  if (const auto& to_dense = summary.to_dense) {
    json["to_dense"] = {{"difference", to_dense->difference},
                        {"gained", to_dense->gained},
                        {"lost", to_dense->lost},
                        {"agresti_min_95", {to_dense->interval.low, to_dense->interval.high}}};
  }
  return json;
}

Json QuestionJson(const PolicyRun& run, const AskedQuestion& asked, const Question& question) {
  return {{"task", TaskName(run.task)},
          {"policy", PolicyName(run.variant.policy)},
          {"value_samples", OrNull(run.variant.value_samples)},
          {"document", asked.document},
          {"question", asked.question},
          {"depth", question.depth},
          {"text", question.text},
          {"answer", question.answer},
          {"more_answers", question.more_answers},
          {"completion", asked.answer.text},
          {"exact", asked.exact},
          {"cold", asked.cold},
          {"prompt_tokens", asked.answer.prompt_tokens},
          {"cached_tokens", asked.answer.cached_tokens},
          {"completion_tokens", asked.answer.completion_tokens},
          {"first_token_ms", asked.answer.first_token_ms},
          {"total_ms", asked.answer.total_ms}};
}

}  // namespace

RunSummary Summarize(const PolicyRun& run, const PolicyRun* dense) {
  RunSummary summary;
  std::vector<double> cold;
  std::vector<double> warm;
  double tokens = 0;
  double seconds = 0;
  for (const AskedQuestion& asked : run.questions) {
    const CompletionAnswer& answer = asked.answer;
    summary.right += asked.exact ? 1 : 0;
    (asked.cold ? cold : warm).push_back(answer.first_token_ms);
    if (answer.completion_tokens > 1) {
      tokens += answer.completion_tokens - 1;
      seconds += (answer.total_ms - answer.first_token_ms) / 1000;
    }
  }
  summary.n = static_cast<int64_t>(run.questions.size());
  summary.interval = WilsonInterval(summary.right, summary.n);
  if (dense != nullptr && dense != &run) {
    const size_t count = run.questions.size();
    summary.to_dense = ComparePaired(RightOnes(run, count), RightOnes(*dense, count));
  }
  summary.cold_first_token_ms = Median(std::move(cold));
  if (!warm.empty()) summary.warm_first_token_ms = Median(std::move(warm));
  if (seconds > 0) summary.tokens_per_second = tokens / seconds;
  if (run.counters) {
    summary.moved_bytes = run.counters->Sum("augur_transfer_bytes_total");
    const std::optional<double> reused = run.counters->Sum("augur_kv_reused_blocks_total");
    const std::optional<double> chosen = run.counters->Sum("augur_kv_chosen_blocks_total");
    if (reused && chosen && *chosen > 0) summary.reused_share = *reused / *chosen;
  }
  return summary;
}

std::string ReportText(const Evaluation& evaluation) {
  std::string text = RunsTable(evaluation) + PooledTable(evaluation) + ComparedTable(evaluation) +
                     CountersTable(evaluation);
  for (const Refusal& refusal : evaluation.refused) {
    absl::StrAppend(&text, "\n", VariantName(refusal.variant),
                    " is not in the table, the daemon refused it: ", refusal.message, "\n");
  }
  for (const LeftOut& one : evaluation.left_out) {
    const std::string why =
        one.exact ? absl::StrFormat("%.3f right under dense", *one.exact) : "its facts do not fit";
    absl::StrAppendFormat(&text, "\n%s at %d tokens does not count: %s.\n", TaskName(one.task),
                          one.length, why);
  }
  if (!evaluation.complete) text += "\nThe evaluation did not come to its end.\n";
  return text;
}

std::string ReportJson(const EvaluationOptions& options, const DocumentsOfLengths& documents,
                       const Evaluation& evaluation) {
  Json refused = Json::array();
  for (const Refusal& refusal : evaluation.refused) {
    Json one = VariantJson(refusal.variant);
    one["message"] = refusal.message;
    refused.push_back(std::move(one));
  }
  Json left_out = Json::array();
  for (const LeftOut& one : evaluation.left_out) {
    left_out.push_back(
        {{"task", TaskName(one.task)}, {"length", one.length}, {"dense_exact", OrNull(one.exact)}});
  }
  Json runs = Json::array();
  for (const PolicyRun& run : evaluation.runs) {
    Json one = VariantJson(run.variant);
    one["task"] = TaskName(run.task);
    one["length"] = run.length;
    one["summary"] = SummaryJson(Summarize(run, BaseRun(evaluation, run)));
    one["counters"] = run.counters ? Json(run.counters->samples()) : Json();
    one["questions"] = Json::array();
    for (const AskedQuestion& asked : run.questions) {
      const Document& document =
          documents.at(run.length).at(run.task)[static_cast<size_t>(asked.document)];
      one["questions"].push_back(
          QuestionJson(run, asked, document.questions[static_cast<size_t>(asked.question)]));
    }
    runs.push_back(std::move(one));
  }
  const Json json = {{"augur_eval_format", kFormat},
                     {"model", evaluation.model.model()},
                     {"daemon_version", evaluation.model.version()},
                     {"max_context", evaluation.model.max_context()},
                     {"options", OptionsJson(options)},
                     {"complete", evaluation.complete},
                     {"refused", std::move(refused)},
                     {"left_out", std::move(left_out)},
                     {"runs", std::move(runs)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace augur::loadtest
