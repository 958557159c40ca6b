#include "loadtest/prometheus_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace augur::loadtest {
namespace {

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == ':';
}

// Reads one line from left to right.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) {}

  std::optional<PrometheusSample> Read() {
    PrometheusSample sample;
    sample.name = TakeName();
    if (sample.name.empty()) return std::nullopt;
    if (Take('{') && !ReadLabels(&sample.labels)) return std::nullopt;
    SkipBlanks();
    const std::string_view number = rest_.substr(0, rest_.find_first_of(" \t"));
    if (!absl::SimpleAtod(absl::string_view(number.data(), number.size()), &sample.value)) {
      return std::nullopt;
    }
    return sample;
  }

 private:
  void SkipBlanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size())); }

  bool Take(char wanted) {
    SkipBlanks();
    if (rest_.empty() || rest_[0] != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string TakeName() {
    SkipBlanks();
    size_t size = 0;
    while (size < rest_.size() && IsNameByte(rest_[size])) ++size;
    std::string name(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return name;
  }

  bool ReadLabels(std::map<std::string, std::string>* labels) {
    while (!Take('}')) {
      const std::string name = TakeName();
      std::string value;
      if (name.empty() || !Take('=') || !Take('"') || !ReadQuoted(&value)) return false;
      (*labels)[name] = std::move(value);
      if (!Take(',')) return Take('}');
    }
    return true;
  }

  // Up to and with the closing quote.
  bool ReadQuoted(std::string* value) {
    for (size_t i = 0; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        rest_.remove_prefix(i + 1);
        return true;
      }
      const bool escaped = rest_[i] == '\\';
      if (escaped && ++i == rest_.size()) return false;
      value->push_back(escaped && rest_[i] == 'n' ? '\n' : rest_[i]);
    }
    return false;
  }

  std::string_view rest_;
};

}  // namespace

std::string SampleKey(const PrometheusSample& sample) {
  if (sample.labels.empty()) return sample.name;
  std::string key = sample.name;
  char before = '{';
  for (const auto& [name, value] : sample.labels) {
    absl::StrAppend(&key, std::string(1, before), name, "=\"", value, "\"");
    before = ',';
  }
  return key + "}";
}

absl::StatusOr<std::vector<PrometheusSample>> ParsePrometheusText(std::string_view page) {
  std::vector<PrometheusSample> samples;
  int number = 0;
  while (!page.empty()) {
    ++number;
    const size_t end = std::min(page.find('\n'), page.size());
    std::string_view line = page.substr(0, end);
    page.remove_prefix(std::min(end + 1, page.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const size_t first = line.find_first_not_of(" \t");
    if (first == std::string_view::npos || line[first] == '#') continue;
    std::optional<PrometheusSample> sample = LineReader(line).Read();
    if (!sample) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number,
                                                     " of the metrics is no sample: \"",
                                                     std::string(line.substr(0, 80)), "\""));
    }
    samples.push_back(*std::move(sample));
  }
  return samples;
}

CounterGrowth::CounterGrowth(const std::vector<PrometheusSample>& before,
                             const std::vector<PrometheusSample>& after,
                             const std::vector<std::string>& names) {
  std::map<std::string, double> old;
  for (const PrometheusSample& sample : before) old[SampleKey(sample)] = sample.value;
  for (const std::string& name : names) {
    std::optional<double> sum;
    bool shrunk = false;
    for (const PrometheusSample& sample : after) {
      if (sample.name != name) continue;
      const std::string key = SampleKey(sample);
      const auto found = old.find(key);
      const double growth = sample.value - (found == old.end() ? 0 : found->second);
      shrunk = shrunk || growth < 0;
      samples_[key] = growth;
      sum = sum.value_or(0) + growth;
    }
    sums_[name] = shrunk ? std::nullopt : sum;
  }
}

std::optional<double> CounterGrowth::Sum(const std::string& name) const {
  const auto found = sums_.find(name);
  return found == sums_.end() ? std::nullopt : found->second;
}

}  // namespace augur::loadtest
