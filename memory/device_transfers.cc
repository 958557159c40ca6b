#include "memory/device_transfers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::memory {
namespace {

// Marks that may be pending on a lane; a few are left for whoever marks it otherwise.
constexpr size_t kMaxPending = kernels::Backend::kMarks - 8;

TransferCounts& CountsOf(TransferStats* stats, TransferKind kind) {
  return stats->by_kind[static_cast<size_t>(kind)];
}

bool Alike(const PageCopy& a, const PageCopy& b) { return a.bytes == b.bytes && a.fp8 == b.fp8; }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTransfers>> DeviceTransfers::Create(
    kernels::Backend* backend, const DeviceTransfersOptions& options) {
  std::unique_ptr<DeviceTransfers> transfers(new DeviceTransfers(backend, options));
  if (transfers->lists_ != nullptr) return transfers;
  return absl::ResourceExhaustedError(absl::StrCat(
      "no pinned memory for lists of copies: ", 2 * options.max_copies * sizeof(kernels::PageCopy),
      " bytes"));
}

DeviceTransfers::DeviceTransfers(kernels::Backend* backend, const DeviceTransfersOptions& options)
    : backend_(backend),
      lane_(backend->OnLane(kernels::Lane::kSpill)),
      options_(options),
      lists_(static_cast<kernels::PageCopy*>(
          backend->AllocateHost(2 * options.max_copies * sizeof(kernels::PageCopy)))) {
  stats_.units = options.ctas;
}

DeviceTransfers::~DeviceTransfers() {
  lane_->Synchronize();
  if (lists_ != nullptr) backend_->Free(lists_);
}

Ticket DeviceTransfers::Submit(TransferKind kind, std::span<const PageCopy> copies) {
  if (copies.empty() || !CanSubmit(copies.size())) return kNoTicket;
  lane_->Follow(backend_);
  size_t bytes = 0;
  // Pages, compressed keys and biases come mixed; a call copies pieces of one kind.
  std::array<PageCopy, 8> kinds{};
  size_t num_kinds = 0;
  for (const PageCopy& copy : copies) {
    bytes += copy.bytes;
    const auto end = kinds.begin() + num_kinds;
    if (std::any_of(kinds.begin(), end,
                    [&](const PageCopy& known) { return Alike(known, copy); })) {
      continue;
    }
    AUGUR_CHECK(num_kinds < kinds.size());
    kinds[num_kinds++] = copy;
  }
  for (size_t i = 0; i < num_kinds; ++i) RunList(copies, kinds[i]);
  return Issue(kind, static_cast<int>(copies.size()), bytes);
}

// Those of `copies` that are like this one.
void DeviceTransfers::RunList(std::span<const PageCopy> copies, const PageCopy& like) {
  const size_t capacity = 2 * options_.max_copies;
  const size_t count = std::count_if(copies.begin(), copies.end(),
                                     [&](const PageCopy& copy) { return Alike(copy, like); });
  // The list lies in one piece; what is left at the end of the ring is passed over.
  size_t begin = list_end_;
  if (begin % capacity + count > capacity) begin += capacity - begin % capacity;
  kernels::PageCopy* list = lists_ + begin % capacity;
  size_t at = 0;
  for (const PageCopy& copy : copies) {
    if (Alike(copy, like)) list[at++] = {copy.from, copy.to};
  }
  list_end_ = begin + count;
  const size_t page_bytes = std::max(like.bytes_read(), like.bytes_written());
  lane_->CopyPages({.pages = list,
                    .known_pages = static_cast<int>(count),
                    .page_bytes = static_cast<int>(page_bytes),
                    .quota = options_.ctas,
                    .fp8 = like.fp8 == nullptr ? kernels::Fp8Pages{} : *like.fp8});
}

Ticket DeviceTransfers::Issue(TransferKind kind, int num_copies, size_t bytes) {
  if (pending_.size() >= kMaxPending) Wait(pending_.front().ticket);
  {
    const std::lock_guard lock(mutex_);
    CountsOf(&stats_, kind).submitted_copies += num_copies;
    stats_.queued_copies += num_copies;
  }
  pending_.push_back({.ticket = ++last_ticket_,
                      .mark = lane_->Mark(),
                      .kind = kind,
                      .list_end = list_end_,
                      .copies = num_copies,
                      .bytes = bytes});
  return last_ticket_;
}

void DeviceTransfers::Count(TransferKind kind, uint64_t num_copies, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  TransferCounts& counts = CountsOf(&stats_, kind);
  counts.submitted_copies += num_copies;
  counts.finished_copies += num_copies;
  counts.finished_bytes += bytes;
}

void DeviceTransfers::Grant(int ctas) {
  const std::lock_guard lock(mutex_);
  stats_.units = ctas;
}

bool DeviceTransfers::CanSubmit(size_t num_copies) const {
  // Half of the ring, so that a list always finds its room in one piece.
  return list_end_ - list_begin_ + num_copies <= static_cast<size_t>(options_.max_copies);
}

void DeviceTransfers::DropFirst() {
  const Pending& first = pending_.front();
  {
    const std::lock_guard lock(mutex_);
    TransferCounts& counts = CountsOf(&stats_, first.kind);
    counts.finished_copies += first.copies;
    counts.finished_bytes += first.bytes;
    stats_.queued_copies -= first.copies;
  }
  list_begin_ = first.list_end;
  done_ticket_ = first.ticket;
  pending_.pop_front();
}

void DeviceTransfers::DropDone() {
  while (!pending_.empty() && lane_->Passed(pending_.front().mark)) DropFirst();
}

bool DeviceTransfers::Done(Ticket ticket) {
  AUGUR_CHECK(ticket <= last_ticket_);
  if (ticket > done_ticket_) DropDone();
  return ticket <= done_ticket_;
}

void DeviceTransfers::Wait(Ticket ticket) {
  AUGUR_CHECK(ticket <= last_ticket_);
  while (ticket > done_ticket_) {
    lane_->Wait(pending_.front().mark);
    DropFirst();
  }
}

TransferStats DeviceTransfers::Stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace augur::memory
