// engine_simulation [--seed N] [--operations N] [--operations-per-seed N]: runs worlds of
// consecutive seeds until the operations are spent; exits 1 and prints the seed of the first that
// breaks.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/engine/simulation.h"

int main(int argc, char** argv) {
  uint64_t seed = 1;
  int64_t operations = 1'000'000;
  int64_t per_seed = 2000;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const int64_t value = std::atoll(argv[i + 1]);
    if (flag == "--seed") seed = static_cast<uint64_t>(value);
    if (flag == "--operations") operations = value;
    if (flag == "--operations-per-seed") per_seed = value;
  }
  augur::tests::SimulationResult total;
  while (total.operations < operations) {
    // Printed before it runs: a CHECK in the code under test ends the process.
    std::printf("\rseed %" PRIu64, seed);
    std::fflush(stdout);
    const augur::tests::SimulationResult one = augur::tests::RunSimulation(seed, per_seed);
    total.operations += one.operations;
    total.steps += one.steps;
    total.requests += one.requests;
    total.preemptions += one.preemptions;
    total.prefix_hits += one.prefix_hits;
    if (!one.fault.empty()) {
      std::printf("\nseed %" PRIu64 ": %s\n", seed, one.fault.c_str());
      return 1;
    }
    ++seed;
  }
  std::printf("\n%" PRId64 " operations clean: %" PRId64 " steps, %" PRId64 " requests, %" PRId64
              " preemptions, %" PRId64 " prefix-hit blocks\n",
              total.operations, total.steps, total.requests, total.preemptions, total.prefix_hits);
  return 0;
}
