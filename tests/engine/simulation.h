// A seeded simulation of batcher, block manager and engine core in virtual time: random arrivals
// with shared prefixes and tenants, cancels, deadlines, slow readers, stop matches, poisoned rows
// and drains over tiny pools, with every invariant checked after every operation.
#pragma once

#include <cstdint>
#include <string>

namespace augur::tests {

struct SimulationResult {
  int64_t operations = 0;
  int64_t steps = 0;
  int64_t requests = 0;
  int64_t preemptions = 0;
  int64_t prefix_hits = 0;  // blocks
  std::string fault;        // empty: clean; else what broke, with the operation's number
};

// One world of about `operations` operations; the same seed gives the same run. A broken CHECK in
// the code under test aborts the process after the seed was printed by the caller.
SimulationResult RunSimulation(uint64_t seed, int64_t operations);

}  // namespace augur::tests
