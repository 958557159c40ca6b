// Copies of KV pages between the device pool and the host pool, behind the compute: lists go in,
// tickets come out. On the CPU backend the copies are made by threads (copy_threads.h); the
// simulation has one in virtual time; on CUDA the same calls order work on streams and the step's
// own copy lists never come back to the host.
//
// Thread: Submit, Done, Wait, Cancel from one thread (the engine's); Stats from any.
// Ownership: from Submit until the ticket is done, the bytes on both sides belong to the engine:
// nobody may write the source, read the target or free either.
// Failure: Submit answers kNoTicket when the bounded queue has not the room for the whole list; the
// caller goes on without or waits for an older ticket. A copy itself cannot fail.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "kernels/fp8_page.h"

namespace augur::memory {

using Ticket = uint64_t;                // rises with submission
inline constexpr Ticket kNoTicket = 0;  // always done

// What a copy is for; lower values go first.
enum class TransferKind {
  kFetch,     // host to device, a layer is waiting for it
  kPrefetch,  // host to device, the next layer will want it
  kRestore,   // host to device, a sequence that joins later
  kSpill,     // device to host
  kCount
};

struct PageCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;  // that cross the link
  // One of the two sides is a page, or half of one, in fp8, the other is not and longer. Null: the
  // same bytes on both sides. Outlives the copy.
  const kernels::Fp8Pages* fp8 = nullptr;

  size_t bytes_read() const { return fp8 != nullptr && !fp8->holds(from) ? plain_bytes() : bytes; }
  size_t bytes_written() const {
    return fp8 != nullptr && fp8->holds(from) ? plain_bytes() : bytes;
  }
  void Run() const {
    if (fp8 != nullptr) return kernels::CopyFp8(*fp8, from, to, bytes);
    std::memcpy(to, from, bytes);
  }

 private:
  size_t plain_bytes() const { return fp8->plain_bytes(bytes); }
};

struct TransferCounts {
  uint64_t submitted_copies = 0;
  uint64_t finished_copies = 0;
  uint64_t cancelled_copies = 0;
  uint64_t finished_bytes = 0;
};

struct TransferStats {
  std::array<TransferCounts, static_cast<size_t>(TransferKind::kCount)> by_kind;
  int64_t busy_ns = 0;           // summed over copying units (threads; CTAs on CUDA)
  int units_busy = 0;            // now
  int units = 0;                 // at hand
  int queued_copies = 0;         // now, not begun
  int64_t oldest_queued_ns = 0;  // age of the oldest copy that has not begun; 0 when there is none
};

class TransferEngine {
 public:
  virtual ~TransferEngine() = default;

  // All copies or none. Copies of one list may run in any order and side by side; lists of one kind
  // begin in order of submission, a more urgent kind overtakes what has not begun. An empty list
  // gives kNoTicket too, and needs no room: ask CanSubmit to tell the two apart.
  virtual Ticket Submit(TransferKind kind, std::span<const PageCopy> copies) = 0;
  virtual bool CanSubmit(size_t num_copies) const = 0;
  // Nothing of the ticket is queued or under way. What a done ticket copied is visible to the
  // caller.
  virtual bool Done(Ticket ticket) = 0;
  // Returns when Done; meanwhile what is left of the ticket goes first.
  virtual void Wait(Ticket ticket) = 0;
  // Copies that have not begun are dropped; the ticket is done when those under way have ended.
  virtual void Cancel(Ticket ticket) = 0;

  virtual TransferStats Stats() const = 0;
};

}  // namespace augur::memory
