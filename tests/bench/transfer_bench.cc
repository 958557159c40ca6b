#include "tests/bench/transfer_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#ifdef AUGUR_HAS_CUDA
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/transfer_probe.h"
#endif

namespace augur::bench {

CLI::App* AddTransferCommand(CLI::App* app, TransferBenchOptions* options) {
  CLI::App* command = app->add_subcommand("transfers", "pages between host and device (CUDA)");
  command->add_option("--device", options->device, "index of the CUDA device");
  command->add_option("--region-gib", options->region_gib, "pinned memory")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--huge-pages", options->huge_pages, "pin pages of 2 MiB (vm.nr_hugepages)");
  command->add_option("--page-kib", options->page_kib, "page sizes, powers of two")
      ->delimiter(',')
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64, 128, 256}));
  command->add_option("--quotas", options->quotas, "CTAs that copy")
      ->delimiter(',')
      ->check(CLI::Range(1, 128));
  command
      ->add_option("--gather", options->gather, "cpu: only the host's gather beside the device's")
      ->check(CLI::IsMember({"cpu"}));
  command->add_option("--gather-threads", options->gather_threads, "of the host")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  command->add_option("--gather-pages", options->gather_pages, "of 32 KiB, in a gather")
      ->delimiter(',')
      ->check(CLI::Range(1, 16384));
  return command;
}

#ifdef AUGUR_HAS_CUDA
namespace {

using kernels::TransferCase;
using kernels::TransferDirection;
using kernels::TransferMethod;
using kernels::TransferProbe;
using kernels::TransferResult;

// What the copy kernel is held to (for the pages of an 8B model with 128 channels a head in bf16).
constexpr int kHeldPageBytes = 32 * 1024;
constexpr int kHeldQuota = 4;
constexpr double kHeldShareOfBest = 0.98;
constexpr double kHeldSlowdown = 1.05;  // beyond the copy engine's

struct Measured {
  TransferCase transfer;
  TransferResult result;
};

bool TakesSms(TransferMethod method) {
  return method == TransferMethod::kBulk || method == TransferMethod::kLoads;
}

// All cases of one direction, the copy engine's best first: the others are compared with it.
std::vector<TransferCase> CasesOf(TransferDirection direction,
                                  const TransferBenchOptions& options) {
  std::vector<TransferCase> cases;
  cases.push_back({.method = TransferMethod::kWhole,
                   .direction = direction,
                   .page_bytes = kHeldPageBytes,
                   .beside_reading = true});
  for (const int kib : options.page_kib) {
    TransferCase transfer{.direction = direction, .page_bytes = kib * 1024};
    for (const TransferMethod method : {TransferMethod::kEngine, TransferMethod::kBatch}) {
      transfer.method = method;
      cases.push_back(transfer);
    }
    transfer.beside_reading = true;
    for (const int quota : options.quotas) {
      transfer.quota = quota;
      for (const bool whole_sms : {false, true}) {
        transfer.leave_whole_sms = whole_sms;
        transfer.method = TransferMethod::kBulk;
        cases.push_back(transfer);
      }
      transfer.leave_whole_sms = false;
      transfer.method = TransferMethod::kLoads;
      cases.push_back(transfer);
    }
  }
  return cases;
}

void Print(const BenchContext& context, const Measured& measured, double engine_slowdown) {
  const TransferCase& transfer = measured.transfer;
  const TransferResult& result = measured.result;
  BenchRecord record(context, "transfer");
  record.Add("method", std::string(NameOf(transfer.method)))
      .Add("direction", std::string(NameOf(transfer.direction)))
      .Add("page_bytes", int64_t{transfer.page_bytes})
      .Add("quota", int64_t{TakesSms(transfer.method) ? transfer.quota : 0})
      .Add("correct", int64_t{result.correct})
      .Add("gb_per_s", result.bytes_per_second / 1e9);
  if (transfer.beside_reading) {
    record.Add("whole_sms_left", int64_t{transfer.leave_whole_sms})
        .Add("read_slowdown", result.read_slowdown)
        .Add("beyond_engine", result.read_slowdown / engine_slowdown)
        .Add("grid_slowdown", result.grid_slowdown)
        .Add("gb_per_s_beside", result.bytes_per_second_beside / 1e9)
        .Add("overlap", result.overlap);
  }
  record.Print();
}

// The fewest CTAs of the copy kernel that reach the wanted share of the best that SMs do.
void PrintHeld(const BenchContext& context, const std::vector<Measured>& all,
               double engine_slowdown) {
  double best = 0;
  for (const Measured& measured : all) {
    if (TakesSms(measured.transfer.method)) best = std::max(best, measured.result.bytes_per_second);
  }
  const Measured* held = nullptr;
  for (const Measured& measured : all) {
    const TransferCase& transfer = measured.transfer;
    if (transfer.method != TransferMethod::kBulk || transfer.page_bytes != kHeldPageBytes ||
        transfer.quota > kHeldQuota || measured.result.bytes_per_second < kHeldShareOfBest * best) {
      continue;
    }
    const bool fewer = held == nullptr || transfer.quota < held->transfer.quota;
    const bool gentler = held != nullptr && transfer.quota == held->transfer.quota &&
                         measured.result.read_slowdown < held->result.read_slowdown;
    if (fewer || gentler) held = &measured;
  }
  BenchRecord record(context, "transfer_held");
  record.Add("direction", std::string(NameOf(all.front().transfer.direction)))
      .Add("best_sm_gb_per_s", best / 1e9)
      .Add("engine_read_slowdown", engine_slowdown)
      .Add("rate_held", int64_t{held != nullptr});
  if (held != nullptr) {
    const double beyond = held->result.read_slowdown / engine_slowdown;
    record.Add("quota", int64_t{held->transfer.quota})
        .Add("of_best_sm", held->result.bytes_per_second / best)
        .Add("whole_sms_left", int64_t{held->transfer.leave_whole_sms})
        .Add("beyond_engine", beyond)
        .Add("slowdown_held", int64_t{beyond <= kHeldSlowdown});
  }
  record.Print();
}

bool RunDirection(const BenchContext& context, const TransferBenchOptions& options,
                  TransferDirection direction, TransferProbe* probe) {
  bool correct = true;
  double engine_slowdown = 1;
  std::vector<Measured> all;
  for (const TransferCase& transfer : CasesOf(direction, options)) {
    all.push_back({transfer, probe->Run(transfer)});
    const TransferResult& result = all.back().result;
    if (transfer.method == TransferMethod::kWhole) engine_slowdown = result.read_slowdown;
    if (!result.correct) {
      correct = false;
      std::fprintf(stderr, "transfers: %s %s, pages of %d bytes, %d CTAs: wrong bytes\n",
                   NameOf(transfer.method), NameOf(direction), transfer.page_bytes, transfer.quota);
    }
    Print(context, all.back(), engine_slowdown);
  }
  PrintHeld(context, all, engine_slowdown);
  return correct;
}

// The device's gather of as many pages first, which the others are compared with.
bool RunGathers(const BenchContext& context, const TransferBenchOptions& options,
                TransferProbe* probe) {
  bool correct = true;
  for (const int pages : options.gather_pages) {
    double device_seconds = 0;
    std::vector<int> cases = options.gather_threads;
    cases.insert(cases.begin(), 0);
    for (const int threads : cases) {
      kernels::GatherCase gather{
          .num_pages = pages, .page_bytes = kHeldPageBytes, .quota = kHeldQuota};
      kernels::ThreadPool pool(std::max(threads, 1));
      if (threads > 0) {
        gather.by_host = [&](const kernels::PageCopy* from, std::byte* buffer) {
          pool.ParallelFor(pages, [&](int page, int) {
            std::memcpy(buffer + size_t(page) * kHeldPageBytes, from[page].from, kHeldPageBytes);
          });
        };
      }
      const kernels::GatherResult result = probe->RunGather(gather);
      if (threads == 0) device_seconds = result.seconds;
      correct &= result.correct;
      const double bytes = static_cast<double>(pages) * kHeldPageBytes;
      BenchRecord record(context, "gather");
      record.Add("by", std::string(threads == 0 ? "device" : "cpu (as published InfiniGen)"))
          .Add("pages", int64_t{pages})
          .Add("page_bytes", int64_t{kHeldPageBytes})
          .Add("host_threads", int64_t{threads})
          .Add("correct", int64_t{result.correct})
          .Add("us", result.seconds * 1e6)
          .Add("gb_per_s", bytes / result.seconds / 1e9)
          .Add("of_device_time", result.seconds / device_seconds);
      if (threads > 0) {
        record.Add("list_us", result.list_seconds * 1e6)
            .Add("gather_us", result.gather_seconds * 1e6)
            .Add("gather_gb_per_s", bytes / result.gather_seconds / 1e9);
      }
      record.Print();
    }
  }
  if (!correct) std::fprintf(stderr, "transfers: a gather left wrong bytes\n");
  return correct;
}

}  // namespace

bool RunTransferBench(const BenchContext& context, const TransferBenchOptions& options) {
  std::string error;
  const std::unique_ptr<TransferProbe> probe =
      TransferProbe::Create({.device = options.device,
                             .region_bytes = static_cast<size_t>(options.region_gib) << 30,
                             .huge_pages = options.huge_pages,
                             .repeats = context.repeats},
                            &error);
  if (probe == nullptr) {
    std::fprintf(stderr, "transfers: %s\n", error.c_str());
    return false;
  }
  BenchContext of_device = context;
  of_device.backend = probe->Describe();
  if (!options.gather.empty()) return RunGathers(of_device, options, probe.get());
  BenchRecord(of_device, "read").Add("gb_per_s", probe->ReadBytesPerSecond() / 1e9).Print();
  bool correct = true;
  for (const auto direction : {TransferDirection::kToDevice, TransferDirection::kToHost}) {
    correct &= RunDirection(of_device, options, direction, probe.get());
  }
  return correct;
}

#else

bool RunTransferBench(const BenchContext&, const TransferBenchOptions&) {
  std::fprintf(stderr, "transfers: this build has no CUDA (preset cuda)\n");
  return false;
}

#endif

}  // namespace augur::bench
