// One measured case as one line of JSON, so that runs can be kept and compared.
#pragma once

#include <cstdint>
#include <string>

namespace augur::bench {

// What every line of a run has in common.
struct BenchContext {
  int threads = 1;
  int repeats = 5;
  std::string backend;  // Backend::Describe()
};

class BenchRecord {
 public:
  BenchRecord(const BenchContext& context, const std::string& bench);
  BenchRecord& Add(const std::string& key, const std::string& value);
  BenchRecord& Add(const std::string& key, int64_t value);
  BenchRecord& Add(const std::string& key, double value);
  void Print() const;

 private:
  std::string line_;
};

// The best of `repeats` runs of `run`, in seconds: noise on a shared machine only ever adds.
template <typename Run>
double BestSeconds(int repeats, Run run);

}  // namespace augur::bench

#include <algorithm>
#include <chrono>
#include <limits>

namespace augur::bench {

template <typename Run>
double BestSeconds(int repeats, Run run) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace augur::bench
