// Pages between pinned host memory and the device: how fast by which method, by page size and CTA
// quota, and what the copy costs a kernel beside it that is bound by the device's memory.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/bench/bench_record.h"

namespace augur::bench {

struct TransferBenchOptions {
  int device = 0;
  int region_gib = 4;  // pinned
  bool huge_pages = false;
  std::vector<int> page_kib = {4, 16, 32, 64};
  std::vector<int> quotas = {1, 2, 4, 8, 16, 32};
  // "cpu": instead of all else the gather on the host that InfiniGen was published with (threads,
  // one pinned buffer, one copy, a scatter) beside the device's own by list, at the same bytes.
  // Only here: Augur's infinigen gathers on the device.
  std::string gather;
  std::vector<int> gather_threads = {1, 4, 8, 16};
  std::vector<int> gather_pages = {64, 256, 1024, 4096, 16384};  // of 32 KiB
};

CLI::App* AddTransferCommand(CLI::App* app, TransferBenchOptions* options);

// False, with a line on stderr, when there is no device or a copy was wrong.
bool RunTransferBench(const BenchContext& context, const TransferBenchOptions& options);

}  // namespace augur::bench
