// Pages between pinned host memory and the device: how fast by which method, by page size and CTA
// quota, and what the copy costs a kernel beside it that is bound by the device's memory.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <vector>

#include "tests/bench/bench_record.h"

namespace augur::bench {

struct TransferBenchOptions {
  int device = 0;
  int region_gib = 4;  // pinned
  bool huge_pages = false;
  std::vector<int> page_kib = {4, 16, 32, 64};
  std::vector<int> quotas = {1, 2, 4, 8, 16, 32};
};

CLI::App* AddTransferCommand(CLI::App* app, TransferBenchOptions* options);

// False, with a line on stderr, when there is no device or a copy was wrong.
bool RunTransferBench(const BenchContext& context, const TransferBenchOptions& options);

}  // namespace augur::bench
