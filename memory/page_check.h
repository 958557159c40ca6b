// Self-test of the host tier: a spilled page, read back, has the bytes that were written. A sample
// of the pages is hashed when its spill is submitted and again when it returns.
//
// Thread: the engine's. Ownership: keeps hashes, never bytes; memory is fixed at start, 32 bytes
// times `capacity`. Failure: a page that differs is counted and answered, and the caller decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace augur::memory {

// XXH64 with seed 0 (the public algorithm, its test vectors hold): four independent lanes of
// multiply and rotate, so that it runs at memory speed, and a finish in which every input bit
// reaches every output bit. Not against an adversary.
uint64_t HashBytes(std::span<const std::byte> bytes);

struct PageCheckOptions {
  uint32_t one_in = 0;  // pages spilled per page checked, on average; 0: off, 1: every page
  // Hashes kept. Page p lives in place p modulo capacity, so with ids below the capacity none is
  // lost; otherwise the newer page displaces the older one.
  size_t capacity = 65'536;
};

struct PageCheckCounts {
  uint64_t recorded = 0;   // pages hashed at their spill
  uint64_t checked = 0;    // pages compared on their return
  uint64_t failed = 0;     // of those, pages that differed
  uint64_t displaced = 0;  // hashes lost to another page before anything else forgot them
};

class PageCheck {
 public:
  enum class Result { kNotSampled, kEqual, kDiffers };

  explicit PageCheck(const PageCheckOptions& options);

  // To be called for every spill, before anything may write `bytes` again: it also forgets what the
  // host page held before.
  void Record(uint64_t host_page, std::span<const std::byte> bytes) {
    if (Draws(host_page)) Keep(host_page, bytes);
  }
  // Record in two, where the bytes must be made first: Keep if Draws says so.
  bool Draws(uint64_t host_page);
  void Keep(uint64_t host_page, std::span<const std::byte> bytes);
  // The whole page as Record saw it; another length differs. May be asked again and again.
  bool Holds(uint64_t host_page) const;  // otherwise it is not sampled
  Result Verify(uint64_t host_page, std::span<const std::byte> bytes);

  const PageCheckCounts& counts() const { return counts_; }

 private:
  struct Entry {
    uint64_t page = 0;
    uint64_t hash = 0;
    size_t bytes = 0;
    bool held = false;
  };

  uint64_t DrawGap();

  const uint32_t one_in_;
  uint64_t draws_ = 0;
  uint64_t until_next_ = 1;  // spills until the next one that is recorded, itself included
  std::vector<Entry> entries_;
  PageCheckCounts counts_;
};

}  // namespace augur::memory
