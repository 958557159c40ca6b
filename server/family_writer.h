// Prometheus families, sample by sample, for server/metrics_families.cc and tier_metrics.cc.
//
// Thread: any, one writer at a time. Ownership: the list is the caller's. Failure: none.
#pragma once

#include <prometheus/metric_family.h>

#include <limits>
#include <utility>
#include <vector>

#include "memory/base/histogram.h"

namespace augur::server {

// Appends families with one fixed set of labels.
class FamilyWriter {
 public:
  using ClientMetric = prometheus::ClientMetric;
  using Labels = std::vector<ClientMetric::Label>;

  FamilyWriter(Labels labels, std::vector<prometheus::MetricFamily>* families)
      : labels_(std::move(labels)), families_(families) {}

  // Further samples of the family follow with Sample().
  void Begin(const char* name, const char* help, prometheus::MetricType type) {
    families_->push_back({name, help, type, {}});
  }

  void Sample(double value, const Labels& more = {}) {
    prometheus::MetricFamily& family = families_->back();
    ClientMetric metric = Labelled(more);
    if (family.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family.metric.push_back(std::move(metric));
  }

  void Counter(const char* name, const char* help, uint64_t value) {
    Begin(name, help, prometheus::MetricType::Counter);
    Sample(static_cast<double>(value));
  }

  void Gauge(const char* name, const char* help, double value) {
    Begin(name, help, prometheus::MetricType::Gauge);
    Sample(value);
  }

  void Histogram(const char* name, const char* help, const memory::Histogram& histogram) {
    Begin(name, help, prometheus::MetricType::Histogram);
    Buckets(histogram);
  }

  // One histogram of a family begun as such.
  void Buckets(const memory::Histogram& histogram, const Labels& more = {}) {
    const memory::HistogramSnapshot snapshot = histogram.Snapshot();
    ClientMetric metric = Labelled(more);
    uint64_t cumulative = 0;
    for (size_t i = 0; i < snapshot.counts.size(); ++i) {
      cumulative += snapshot.counts[i];
      const double bound =
          i < snapshot.bounds.size() ? snapshot.bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({cumulative, bound});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = snapshot.sum;
    families_->back().metric.push_back(std::move(metric));
  }

 private:
  ClientMetric Labelled(const Labels& more) const {
    ClientMetric metric;
    metric.label = labels_;
    metric.label.insert(metric.label.end(), more.begin(), more.end());
    return metric;
  }

  const Labels labels_;
  std::vector<prometheus::MetricFamily>* const families_;
};

}  // namespace augur::server
