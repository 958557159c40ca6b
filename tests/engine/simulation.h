// A seeded simulation of batcher, KV store, residency and engine core in virtual time: random
// arrivals with shared prefixes, tenants and attention policies, cancels, deadlines, slow readers,
// stop matches, poisoned rows, forced preemptions, cleared caches and drains over tiny pools on
// both tiers, with copies that take their time, and every invariant checked.
//
// The oracles: RecordingRunner compares every record and compressed key that is read;
// SimulatedTransfers every copy's source; the transcript of each request with what the model says
// alone; CheckInvariants; one terminal event a request; everything ends and leaves both pools.
#pragma once

#include <cstdint>
#include <string>

namespace augur::tests {

struct SimulationResult {
  int64_t steps = 0;
  int64_t requests = 0;
  int64_t prefix_hits = 0;  // blocks
  int64_t saved = 0;        // preemptions whose KV stayed on the host

  // What counts as an operation.
  int64_t segments = 0;  // of engine steps
  int64_t admissions = 0;
  int64_t preemptions = 0;
  int64_t cancels = 0;
  int64_t copies = 0;       // finished
  int64_t group_plans = 0;  // slots of one (sequence, layer, kv head) planned
  int64_t operations() const {
    return segments + admissions + preemptions + cancels + copies + group_plans;
  }

  std::string fault;  // empty: clean; else what broke, with the operation's number

  void Add(const SimulationResult& other);
};

// One world of about `operations` operations; the same seed gives the same run. A broken CHECK in
// the code under test aborts the process after the seed was printed by the caller.
SimulationResult RunSimulation(uint64_t seed, int64_t operations);

}  // namespace augur::tests
