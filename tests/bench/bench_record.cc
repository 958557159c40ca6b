#include "tests/bench/bench_record.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace augur::bench {

BenchRecord::BenchRecord(const BenchContext& context, const std::string& bench)
    : line_(absl::StrCat("{\"bench\":\"", bench, "\",\"backend\":\"", context.backend,
                         "\",\"threads\":", context.threads)) {}

BenchRecord& BenchRecord::Add(const std::string& key, const std::string& value) {
  absl::StrAppend(&line_, ",\"", key, "\":\"", value, "\"");
  return *this;
}

BenchRecord& BenchRecord::Add(const std::string& key, int64_t value) {
  absl::StrAppend(&line_, ",\"", key, "\":", value);
  return *this;
}

BenchRecord& BenchRecord::Add(const std::string& key, double value) {
  absl::StrAppend(&line_, ",\"", key, "\":", absl::StrFormat("%.4g", value));
  return *this;
}

void BenchRecord::Print() const {
  std::printf("%s}\n", line_.c_str());
  std::fflush(stdout);
}

}  // namespace augur::bench
