#include "loadtest/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/report_table.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

constexpr size_t kStretch = 64;  // tokens

double MeanOf(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

const PerplexityRun* DenseRun(const PerplexityReport& report, int64_t length) {
  for (const PerplexityRun& run : report.runs) {
    if (run.length == length && run.variant.is_dense()) return &run;
  }
  return nullptr;
}

std::optional<NatsDifference> ToDense(const PerplexityReport& report, const PerplexityRun& run) {
  const PerplexityRun* const dense = DenseRun(report, run.length);
  if (dense == nullptr || dense == &run) return std::nullopt;
  return CompareNats(run.nats, dense->nats);
}

}  // namespace

double PerplexityRun::mean() const { return MeanOf(nats); }
double PerplexityRun::perplexity() const { return std::exp(mean()); }

std::optional<NatsDifference> CompareNats(const std::vector<double>& here,
                                          const std::vector<double>& baseline) {
  if (here.size() != baseline.size()) return std::nullopt;
  std::vector<double> stretches;
  for (size_t first = 0; first + kStretch <= here.size(); first += kStretch) {
    double sum = 0;
    for (size_t i = first; i < first + kStretch; ++i) sum += here[i] - baseline[i];
    stretches.push_back(sum / double{kStretch});
  }
  if (stretches.size() < 2) return std::nullopt;
  const double mean = MeanOf(stretches);
  double squares = 0;
  for (const double one : stretches) squares += (one - mean) * (one - mean);
  const double count = static_cast<double>(stretches.size());
  const double half = 1.959964 * std::sqrt(squares / (count - 1) / count);
  const double difference = MeanOf(here) - MeanOf(baseline);
  return NatsDifference{difference, {difference - half, difference + half}};
}

absl::StatusOr<std::vector<TokenSequence>> CutSequences(const TokenSequence& tokens, int64_t length,
                                                        int most) {
  std::vector<TokenSequence> sequences;
  for (int64_t first = 0; first + length <= static_cast<int64_t>(tokens.size()); first += length) {
    if (static_cast<int>(sequences.size()) == most) break;
    sequences.emplace_back(tokens.begin() + first, tokens.begin() + first + length);
  }
  if (!sequences.empty()) return sequences;
  return absl::InvalidArgumentError(absl::StrCat("--text: expected at least ", length,
                                                 " tokens (--length), found ", tokens.size()));
}

absl::Status ScoreVariants(const std::vector<TokenSequence>& sequences,
                           const std::vector<AttentionVariant>& variants, CompletionClient* client,
                           const std::function<void(const std::string& line)>& progress,
                           PerplexityReport* report) {
  for (const AttentionVariant& variant : variants) {
    PerplexityRun run{variant, static_cast<int64_t>(sequences.front().size())};
    absl::Status status;
    for (const TokenSequence& sequence : sequences) {
      const auto logprobs = client->ScorePrompt(sequence, variant);
      status = logprobs.status();
      if (!status.ok()) break;
      for (size_t i = sequence.size() / 2; i < sequence.size(); ++i) {
        run.nats.push_back(-(*logprobs)[i]);
      }
    }
    if (absl::IsFailedPrecondition(status)) {
      report->refused.push_back(
          absl::StrCat(VariantName(variant), " is left out, refused: ", status.message()));
      progress(report->refused.back());
      continue;
    }
    if (!status.ok()) return status;
    progress(absl::StrFormat("%s, %d tokens: perplexity %.4f of %d tokens", VariantName(variant),
                             run.length, run.perplexity(), run.nats.size()));
    report->runs.push_back(std::move(run));
  }
  return absl::OkStatus();
}

std::string PerplexityText(const PerplexityReport& report) {
  ReportTable table({"policy", "length", "scored", "perplexity", "nats", "to dense", "95 % paired"},
                    1);
  for (const PerplexityRun& run : report.runs) {
    const auto to_dense = ToDense(report, run);
    table.AddRow(
        {VariantName(run.variant), absl::StrCat(run.length), absl::StrCat(run.nats.size()),
         absl::StrFormat("%.4f", run.perplexity()), absl::StrFormat("%.4f", run.mean()),
         to_dense ? absl::StrFormat("%+.4f", to_dense->difference) : kUnknown,
         to_dense ? absl::StrFormat("%+.4f..%+.4f", to_dense->interval.low, to_dense->interval.high)
                  : kUnknown});
  }
  std::string text = table.Text();
  for (const std::string& line : report.refused) absl::StrAppend(&text, "\n", line, "\n");
  return text;
}

std::string PerplexityJson(const PerplexityReport& report) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const PerplexityRun& run : report.runs) {
    nlohmann::ordered_json one = {{"policy", VariantName(run.variant)}, {"length", run.length},
                                  {"scored_tokens", run.nats.size()},   {"nats", run.mean()},
                                  {"perplexity", run.perplexity()},     {"to_dense", nullptr}};
    if (const auto to_dense = ToDense(report, run)) {
      one["to_dense"] = {{"nats", to_dense->difference},
                         {"paired_95", {to_dense->interval.low, to_dense->interval.high}}};
    }
    runs.push_back(std::move(one));
  }
  return nlohmann::ordered_json{{"perplexity", std::move(runs)}, {"refused", report.refused}}.dump(
             1) +
         "\n";
}

}  // namespace augur::loadtest
