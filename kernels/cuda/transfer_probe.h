// Measures ways of moving pages between pinned host memory and the device, alone and beside a
// kernel that is bound by the device's memory, for augur-bench. No CUDA headers needed here.
//
// Thread: one at a time. Ownership: all of its memory (region_bytes pinned, and as much as a gather
// takes; copied_bytes and read_bytes on the device), until it is destroyed. Failure: Create's error
// line; a device that breaks later as device_failure.h.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "kernels/ops/page_copy.h"

namespace augur::kernels {

enum class TransferMethod {
  kBulk,    // CopyPages: bulk copies through shared memory, one warp a CTA
  kLoads,   // 16-byte loads and stores through registers, 512 threads a CTA
  kEngine,  // one cudaMemcpyAsync a page
  kBatch,   // cudaMemcpyBatchAsync, 4,096 pages a call
  kWhole,  // one cudaMemcpyAsync for all, pages lying together: what the copy engine can do at best
};
const char* NameOf(TransferMethod method);

enum class TransferDirection { kToDevice, kToHost };
const char* NameOf(TransferDirection direction);

struct TransferProbeOptions {
  int device = 0;
  size_t region_bytes = size_t{4} << 30;  // pinned; pages lie at random places of it
  bool huge_pages = false;
  // Copied in a run. At 55 GB/s 9.7 ms, so that reading (9 times read_bytes: 4.3 ms) is over before
  // the copy is.
  size_t copied_bytes = size_t{512} << 20;
  size_t read_bytes =
      size_t{2} << 30;  // by the reading kernel; far more than the second-level cache
  int repeats = 5;      // runs that count, after one that does not
};

struct TransferCase {
  TransferMethod method = TransferMethod::kBulk;
  TransferDirection direction = TransferDirection::kToDevice;
  int page_bytes = 32 * 1024;  // a multiple of 16
  int quota = 4;               // CTAs; not read for the copy engine's methods
  // Not for kEngine and kBatch: there the host hands out pages more slowly than they are copied,
  // and what is measured beside them would be the host.
  bool beside_reading = false;
  // How much smaller the reading kernel's grid is: by what a copy CTA takes of its SM's threads and
  // registers, or by all that fits on the SM (for when kernels of so different needs of shared
  // memory are not put on one SM together).
  bool leave_whole_sms = false;
};

struct TransferResult {
  bool correct = false;         // every byte of the last run is where it should be
  double bytes_per_second = 0;  // alone, the best run
  // All below with beside_reading only, medians. The reading kernel's grid fills the device but for
  // the places that the copy's CTAs take.
  double read_slowdown = 0;            // its time beside the copy, of that alone with the full grid
  double grid_slowdown = 0;            // its time alone with the smaller grid, of the same
  double bytes_per_second_beside = 0;  // of the copy: the reading runs beside the first half or so
  double overlap = 0;  // share of the reading's time in which the copy ran: should be 1
};

// Pages at random places of the region to random places of the device, which a list in device
// memory names, as a layer's choice leaves it.
struct GatherCase {
  int num_pages = 1024;
  int page_bytes = 32 * 1024;
  int quota = 4;  // CTAs of CopyPages
  // Null: the device gathers by the list. Otherwise the form that InfiniGen was published with: the
  // host fetches the list and copies the pages one after another into one pinned buffer, which this
  // does; one copy moves it, and the device scatters it.
  std::function<void(const PageCopy* pages, std::byte* buffer)> by_host = {};
};

// Medians by the host's clock, from the list's being in device memory until every page is in its
// place and the host knows.
struct GatherResult {
  bool correct = false;
  double seconds = 0;
  // Of them, by_host: until the host has the list, and its gathering.
  double list_seconds = 0;
  double gather_seconds = 0;
};

class TransferProbe {
 public:
  // Null, with a line for the person at the console in *error.
  static std::unique_ptr<TransferProbe> Create(const TransferProbeOptions& options,
                                               std::string* error);
  virtual ~TransferProbe() = default;
  // For bench records, e.g. "cuda:0 NVIDIA H200".
  virtual std::string Describe() const = 0;
  // Of the reading kernel alone, with the full grid.
  virtual double ReadBytesPerSecond() const = 0;
  virtual TransferResult Run(const TransferCase& transfer) = 0;
  // num_pages * page_bytes: at most half of read_bytes, and copied_bytes.
  virtual GatherResult RunGather(const GatherCase& gather) = 0;
};

}  // namespace augur::kernels
