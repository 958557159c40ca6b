// What the daemon said of itself on its metrics page while a stage ran: every `augur_` and `vllm:`
// metric but those of single layers and of what never changes (`_info`).
//
//   counters    names ending in _total: growth from the first page to the last
//   histograms  growth of count and sum; percentiles by linear interpolation within buckets
//   gauges      the rest: at the first page, highest, at the last page, and the mean over the pages
//               between these two, which were taken under load (over all where there is none)
//
// The labels model_name and engine, which all of a daemon's metrics have alike, are left out.
//
// The pages count whatever the daemon did meanwhile, so it should serve nobody else.
//
// Thread: PageSummary has one owner; DaemonWatch scrapes on a thread of its own. Ownership: values.
// Units: the metrics'. Failure: Begin gives what ScrapeMetrics fails with; a page that is missed
// later is counted.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loadtest/prometheus_text.h"

namespace augur::loadtest {

struct GaugeFigure {
  double start = 0;
  double mean = 0;
  double max = 0;
  double end = 0;
};

struct HistogramFigure {
  double count = 0;
  double sum = 0;
  double p50 = 0;  // the upper edge of the last finite bucket where it lies beyond that
  double p99 = 0;
  double Mean() const { return count > 0 ? sum / count : 0; }
};

struct DaemonFigures {
  int pages = 0;
  int missed_pages = 0;
  bool restarted = false;                             // a counter shrank: growth is not known
  std::map<std::string, GaugeFigure> gauges;          // by SampleKey
  std::map<std::string, double> counters;             // by SampleKey
  std::map<std::string, HistogramFigure> histograms;  // by SampleKey without the suffix and `le`

  // Over all labels; nullopt where there is none.
  std::optional<double> Counter(const std::string& name) const;
  std::optional<GaugeFigure> Gauge(const std::string& key) const;
  std::optional<HistogramFigure> Histogram(const std::string& key) const;
};

class PageSummary {
 public:
  void Add(const std::vector<PrometheusSample>& page);
  void Miss() { ++figures_.missed_pages; }
  DaemonFigures Finish() const;

 private:
  struct Cumulative {
    double first = 0;
    double last = 0;
  };
  struct Buckets {
    std::map<double, Cumulative> by_edge;
    Cumulative count;
    Cumulative sum;
  };

  DaemonFigures figures_;  // gauges hold sums over all pages instead of means until Finish
  std::map<std::string, Cumulative> counters_;
  std::map<std::string, Buckets> histograms_;
};

class DaemonWatch {
 public:
  DaemonWatch(std::string address, double interval_s);
  ~DaemonWatch();
  DaemonWatch(const DaemonWatch&) = delete;
  DaemonWatch& operator=(const DaemonWatch&) = delete;

  // Takes the first page, then one each interval.
  absl::Status Begin();
  // Takes the last page. A stream is over for the daemon, and counted, a moment after its client
  // has the status: looks again, for a second at most, while more are open than at the first page.
  DaemonFigures Finish();

 private:
  void Watch();
  absl::StatusOr<std::vector<PrometheusSample>> LastPage() const;

  const std::string address_;
  const double interval_s_;
  double open_at_first_ = 0;  // streams
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;  // under mutex_
  PageSummary summary_;  // the thread's while it runs
  std::thread thread_;
};

}  // namespace augur::loadtest
