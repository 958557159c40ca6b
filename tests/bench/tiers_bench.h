// Decode of sequences whose history lies in the host pool, beside what the device and the link can
// do: policies, prefetch, spare slots and re-use of blocks from token to token. Histories are made
// up: the pools' bytes are random on the device and zero on the host, and which blocks a token
// chooses is drawn (kernels/ops/drive_choice.h), though scores are computed as ever.
//
// Sampled values draw from real scores of made-up keys (synthetic_keys.h): the host's are then
// random, too.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/model_bench.h"
#include "tests/bench/synthetic_keys.h"

namespace augur::bench {

struct TiersBenchOptions {
  std::string random_weights;  // a config.json
  std::vector<int> batches = {1, 4, 8};
  int context = 131072;  // tokens behind each sequence; a multiple of 64
  int steps = 256;       // timed, after some that fill the slots
  // Share of chosen blocks that stay: a number, below 0: what scores choose; natural: as measured.
  // Each is a run of all batches.
  std::vector<std::string> reuse = {"0.8"};
  // What the others are: alike (any candidate) or law (of stack distances, as measured; natural
  // re-use has no other).
  std::string others = "alike";
  std::string reuse_law = "tests/bench/shapes/demo-9m-reuse.json";  // of `augur-bench reuse --out`
  std::string reuse_source = "text";                                // or tasks
  int spare_slots = 0;
  // Each is a run of all batches: a number, or "auto" within the bounds.
  std::vector<std::string> copy_ctas = {"4"};
  int copy_ctas_min = 1;
  int copy_ctas_max = 8;
  // Above 0: batches are the loads of one run, from their first steps on (those that fill the slots
  // among them), and every so many steps are a record.
  int window = 0;
  // Of each batch's last sequence, which is saved and comes back beside the others: records of
  // their steps, in turns in pieces and at once.
  int warm_ups = 0;
  bool prefetch = true;
  std::string policy = "forecast";   // of all tokens: dense, sparse, forecast or infinigen
  std::string residency = "tiered";  // or device; auto: on the device, beside a host pool
  double device_gb = 0;              // weights, 2.2 GB of buffers and the pool; 0: the whole device
  std::string host_dtype = "same";   // of host pages; or fp8
  // Each is a run of all batches: exact, or sampled. Both: one deployment whose requests may say.
  std::vector<std::string> values = {"exact"};
  int samples = 128;  // draws of a query head
  std::string estimator = "proportional";
  std::string value_fetch = "auto";  // or rows, whole
  SyntheticKeys keys = {};           // where something samples
};

// False, with a line on stderr, when the model cannot be loaded. Batches that the pools are too
// small for are left out with a line that says so.
bool RunTiersBench(kernels::Backend* backend, const BenchContext& context,
                   const TiersBenchOptions& options, const Ceilings& ceilings);

}  // namespace augur::bench
