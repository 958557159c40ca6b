#include "loadtest/evaluation_picture.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/evaluation_report.h"
#include "loadtest/svg_plot.h"

namespace augur::loadtest {
namespace {

constexpr double kBlockTokens = 64;

// Percent of the prompt's blocks that a generated token reads.
std::optional<double> ShareRead(const PolicyRun& run) {
  if (run.variant.is_dense()) return 100.0;
  if (!run.variant.top_k_blocks) return std::nullopt;
  const double blocks = std::max(static_cast<double>(run.length) / kBlockTokens, 1.0);
  return std::min(100.0, 100.0 * *run.variant.top_k_blocks / blocks);
}

// What a line joins: everything but the budget.
std::string SeriesName(const PolicyRun& run, bool several_lengths) {
  AttentionVariant variant = run.variant;
  variant.top_k_blocks.reset();
  const std::string name = VariantName(variant);
  return several_lengths ? absl::StrCat(name, ", ", run.length) : name;
}

PlotPoint PointOf(const PolicyRun& run, double share) {
  const RunSummary summary = Summarize(run, nullptr);
  const double exact = static_cast<double>(summary.right) / static_cast<double>(summary.n);
  return {.x = share,
          .y = exact,
          .hollow = run.variant.is_dense(),
          .note = absl::StrFormat("%s: %.3f (%.3f to %.3f) of %d", VariantName(run.variant), exact,
                                  summary.interval.low, summary.interval.high, summary.n)};
}

Plot PlotOf(RecallTask task, const Evaluation& evaluation, bool several_lengths) {
  Plot plot;
  plot.title = TaskName(task);
  plot.x_label = "KV read, % of dense";
  plot.y_label = "right";
  plot.log_x = true;
  std::vector<std::pair<std::string, std::vector<PlotPoint>>> series;  // in the order of the runs
  for (const PolicyRun& run : evaluation.runs) {
    const std::optional<double> share = ShareRead(run);
    if (run.task != task || !share || run.questions.empty()) continue;
    const std::string name = SeriesName(run, several_lengths);
    auto found = std::find_if(series.begin(), series.end(),
                              [&](const auto& one) { return one.first == name; });
    if (found == series.end()) found = series.insert(series.end(), {name, {}});
    found->second.push_back(PointOf(run, *share));
  }
  for (auto& [name, points] : series) {
    std::sort(points.begin(), points.end(),
              [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    plot.series.push_back({name, std::move(points), false});
  }
  return plot;
}

}  // namespace

std::string ReportSvg(const Evaluation& evaluation) {
  std::vector<RecallTask> tasks;
  bool several_lengths = false;
  for (const PolicyRun& run : evaluation.runs) {
    const bool counts = std::none_of(evaluation.left_out.begin(), evaluation.left_out.end(),
                                     [&](const LeftOut& one) { return one.IsOf(run); });
    const bool is_new = std::find(tasks.begin(), tasks.end(), run.task) == tasks.end();
    if (counts && is_new) tasks.push_back(run.task);
    several_lengths |= run.length != evaluation.runs.front().length;
  }
  std::vector<Plot> plots;
  for (const RecallTask task : tasks) plots.push_back(PlotOf(task, evaluation, several_lengths));
  const std::string lengths =
      evaluation.runs.empty() || several_lengths
          ? "several lengths"
          : absl::StrCat("prompts of ", evaluation.runs.front().length, " tokens");
  return PlotSheet(
      "Accuracy over KV read",
      absl::StrCat(evaluation.model.model(), ", ", lengths, "; the same questions for every line"),
      plots);
}

}  // namespace augur::loadtest
