// Whole pages between the pools where the device copies them itself: the transfer engine of a
// backend with lanes. Everything goes to the spill lane, in order of submission, behind what the
// main order has been asked to do so far; nothing there holds up a step. What a step fetches for
// itself is not seen here: its lists never leave the device (engine/attention/device_attention.h).
//
// Thread: as TransferEngine, which is the backend's thread. Ownership: lists in pinned memory; the
// backend outlives it. Failure: Create names the bytes. A submitted copy cannot be taken back:
// Cancel drops nothing, and the ticket is done when the copy has been made.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "memory/transfer_engine.h"

namespace augur::memory {

struct DeviceTransfersOptions {
  int max_copies = 65536;  // submitted and not done
  int ctas = 4;            // that copy what is submitted, at a time
};

class DeviceTransfers final : public TransferEngine {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceTransfers>> Create(
      kernels::Backend* backend, const DeviceTransfersOptions& options = {});
  ~DeviceTransfers() override;

  Ticket Submit(TransferKind kind, std::span<const PageCopy> copies) override;
  bool CanSubmit(size_t num_copies) const override;
  bool Done(Ticket ticket) override;
  void Wait(Ticket ticket) override;
  void Cancel(Ticket) override {}
  TransferStats Stats() const override;

  // A ticket for copies that the caller has put on the spill lane itself, all that it holds so far.
  Ticket Issue(TransferKind kind, int num_copies, size_t bytes);
  // For the counts alone: what a step has fetched for itself.
  void Count(TransferKind kind, uint64_t num_copies, uint64_t bytes);
  // Likewise, how many CTAs fetch for it from now on.
  void Grant(int ctas);
  int ctas() const { return options_.ctas; }

 private:
  struct Pending {
    Ticket ticket = kNoTicket;
    uint64_t mark = 0;
    TransferKind kind = TransferKind::kSpill;
    size_t list_end = 0;  // of its list, counted from the start of time
    int copies = 0;
    size_t bytes = 0;
  };

  DeviceTransfers(kernels::Backend* backend, const DeviceTransfersOptions& options);
  void RunList(std::span<const PageCopy> copies, const PageCopy& like);
  void DropDone();
  void DropFirst();

  kernels::Backend* const backend_;
  kernels::Backend* const lane_;
  const DeviceTransfersOptions options_;
  kernels::PageCopy* lists_ = nullptr;  // [2 max_copies]: a list may begin anywhere and is not cut
  size_t list_begin_ = 0;               // of the oldest pending list
  size_t list_end_ = 0;
  Ticket last_ticket_ = kNoTicket;
  Ticket done_ticket_ = kNoTicket;  // it and all before it are done
  std::deque<Pending> pending_;     // oldest first
  mutable std::mutex mutex_;
  TransferStats stats_;  // under mutex_
};

}  // namespace augur::memory
