#include "loadtest/daemon_watch.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "loadtest/metrics_scrape.h"

namespace augur::loadtest {
namespace {

constexpr auto kCountedWithin = std::chrono::seconds(1);
constexpr auto kLookAgain = std::chrono::milliseconds(20);

double OpenStreams(const std::vector<PrometheusSample>& page) {
  for (const PrometheusSample& sample : page) {
    if (sample.name == "augur_open_streams") return sample.value;
  }
  return 0;
}

bool IsWatched(const PrometheusSample& sample) {
  const std::string& name = sample.name;
  return (absl::StartsWith(name, "augur_") || absl::StartsWith(name, "vllm:")) &&
         !absl::EndsWith(name, "_info") && sample.labels.count("layer") == 0 &&
         std::isfinite(sample.value);
}

bool StripSuffix(const char* suffix, std::string* name) {
  if (!absl::EndsWith(*name, suffix)) return false;
  name->resize(name->size() - std::string_view(suffix).size());
  return true;
}

template <typename Cumulative>
void Note(double value, bool is_first, Cumulative* into) {
  if (is_first) into->first = value;
  into->last = value;
}

// As Prometheus' histogram_quantile.
template <typename Edges>
double Quantile(const Edges& by_edge, double count, double quantile) {
  const double rank = quantile * count;
  double lower_edge = 0;
  double below = 0;
  for (const auto& [edge, cumulative] : by_edge) {
    const double reached = cumulative.last - cumulative.first;
    if (reached >= rank && reached > below) {
      if (std::isinf(edge)) return lower_edge;
      return lower_edge + (edge - lower_edge) * (rank - below) / (reached - below);
    }
    below = reached;
    if (!std::isinf(edge)) lower_edge = edge;
  }
  return lower_edge;
}

template <typename Map>
auto Find(const Map& map, const std::string& key) -> std::optional<typename Map::mapped_type> {
  const auto found = map.find(key);
  if (found == map.end()) return std::nullopt;
  return found->second;
}

}  // namespace

std::optional<double> DaemonFigures::Counter(const std::string& name) const {
  std::optional<double> sum;
  for (auto at = counters.lower_bound(name); at != counters.end(); ++at) {
    if (at->first != name && !absl::StartsWith(at->first, name + "{")) {
      if (!absl::StartsWith(at->first, name)) break;
      continue;
    }
    sum = sum.value_or(0) + at->second;
  }
  return sum;
}

std::optional<GaugeFigure> DaemonFigures::Gauge(const std::string& key) const {
  return Find(gauges, key);
}

std::optional<HistogramFigure> DaemonFigures::Histogram(const std::string& key) const {
  return Find(histograms, key);
}

void PageSummary::Add(const std::vector<PrometheusSample>& page) {
  const bool is_first = figures_.pages++ == 0;
  for (PrometheusSample sample : page) {
    sample.labels.erase("model_name");
    sample.labels.erase("engine");
    if (absl::EndsWith(sample.name, "_bucket")) {
      const auto edge = sample.labels.find("le");
      double at = 0;
      if (edge == sample.labels.end() || !absl::SimpleAtod(edge->second, &at)) continue;
      sample.labels.erase(edge);
      if (!IsWatched(sample) || !StripSuffix("_bucket", &sample.name)) continue;
      Note(sample.value, is_first, &histograms_[SampleKey(sample)].by_edge[at]);
      continue;
    }
    if (!IsWatched(sample)) continue;
    if (absl::EndsWith(sample.name, "_total")) {
      Note(sample.value, is_first, &counters_[SampleKey(sample)]);
      continue;
    }
    const double value = sample.value;
    if (StripSuffix("_count", &sample.name)) {
      Note(value, is_first, &histograms_[SampleKey(sample)].count);
    } else if (StripSuffix("_sum", &sample.name)) {
      Note(value, is_first, &histograms_[SampleKey(sample)].sum);
    } else {
      GaugeFigure& gauge = figures_.gauges[SampleKey(sample)];
      if (is_first) gauge = {.start = value, .mean = 0, .max = value, .end = value};
      gauge.mean += value;
      gauge.max = std::max(gauge.max, value);
      gauge.end = value;
    }
  }
}

DaemonFigures PageSummary::Finish() const {
  DaemonFigures figures = figures_;
  for (auto& [key, gauge] : figures.gauges) {
    gauge.mean = figures.pages > 2 ? (gauge.mean - gauge.start - gauge.end) / (figures.pages - 2)
                                   : gauge.mean / std::max(figures.pages, 1);
  }
  for (const auto& [key, counter] : counters_) {
    figures.counters[key] = counter.last - counter.first;
    figures.restarted = figures.restarted || counter.last < counter.first;
  }
  for (const auto& [key, buckets] : histograms_) {
    HistogramFigure histogram;
    histogram.count = buckets.count.last - buckets.count.first;
    histogram.sum = buckets.sum.last - buckets.sum.first;
    if (histogram.count > 0) {
      histogram.p50 = Quantile(buckets.by_edge, histogram.count, 0.5);
      histogram.p99 = Quantile(buckets.by_edge, histogram.count, 0.99);
    }
    figures.histograms[key] = histogram;
  }
  return figures;
}

DaemonWatch::DaemonWatch(std::string address, double interval_s)
    : address_(std::move(address)), interval_s_(interval_s) {}

DaemonWatch::~DaemonWatch() { Finish(); }

absl::Status DaemonWatch::Begin() {
  const auto page = ScrapeMetrics(address_);
  if (!page.ok()) return page.status();
  summary_.Add(*page);
  open_at_first_ = OpenStreams(*page);
  thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

void DaemonWatch::Watch() {
  const auto interval = std::chrono::duration<double>(interval_s_);
  std::unique_lock lock(mutex_);
  for (bool ending = false; !ending;) {
    ending = wake_.wait_for(lock, interval, [this] { return ending_; });
    lock.unlock();
    const auto page = ending ? LastPage() : ScrapeMetrics(address_);
    if (page.ok()) {
      summary_.Add(*page);
    } else {
      summary_.Miss();
    }
    lock.lock();
  }
}

absl::StatusOr<std::vector<PrometheusSample>> DaemonWatch::LastPage() const {
  const auto limit = std::chrono::steady_clock::now() + kCountedWithin;
  for (;;) {
    auto page = ScrapeMetrics(address_);
    if (!page.ok() || OpenStreams(*page) <= open_at_first_) return page;
    if (std::chrono::steady_clock::now() >= limit) return page;
    std::this_thread::sleep_for(kLookAgain);
  }
}

DaemonFigures DaemonWatch::Finish() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  return summary_.Finish();
}

}  // namespace augur::loadtest
