#include "memory/page_check.h"

#include <bit>
#include <cstring>

#include "kernels/check.h"

namespace augur::memory {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <typename T>
uint64_t Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t Round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t Merge(uint64_t hash, uint64_t lane) { return (hash ^ Round(0, lane)) * kPrime1 + kPrime4; }

}  // namespace

uint64_t HashBytes(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = kPrime5;
  if (left >= 32) {
    uint64_t lanes[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
    for (; left >= 32; at += 32, left -= 32) {
      for (int i = 0; i < 4; ++i) lanes[i] = Round(lanes[i], Load<uint64_t>(at + 8 * i));
    }
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
           std::rotl(lanes[3], 18);
    for (const uint64_t lane : lanes) hash = Merge(hash, lane);
  }
  hash += bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    hash = std::rotl(hash ^ Round(0, Load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ Load<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; ++at, --left) {
    hash = std::rotl(hash ^ Load<uint8_t>(at) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

PageCheck::PageCheck(const PageCheckOptions& options) : one_in_(options.one_in) {
  AUGUR_CHECK(options.capacity > 0);
  if (one_in_ > 0) entries_.resize(options.capacity);
}

// SplitMix64 over a counter, reduced to [1, 2 * one_in - 1], whose mean is one_in. A fixed stride
// would fall in step with the layers and check the same one for ever.
uint64_t PageCheck::DrawGap() {
  uint64_t draw = ++draws_ * 0x9E3779B97F4A7C15;
  draw = (draw ^ draw >> 30) * 0xBF58476D1CE4E5B9;
  draw = (draw ^ draw >> 27) * 0x94D049BB133111EB;
  return 1 + (draw ^ draw >> 31) % (2 * uint64_t{one_in_} - 1);
}

bool PageCheck::Draws(uint64_t host_page) {
  if (one_in_ == 0) return false;
  Entry& entry = entries_[host_page % entries_.size()];
  if (entry.held && entry.page == host_page) entry.held = false;
  if (--until_next_ > 0) return false;
  until_next_ = DrawGap();
  return true;
}

void PageCheck::Keep(uint64_t host_page, std::span<const std::byte> bytes) {
  Entry& entry = entries_[host_page % entries_.size()];
  if (entry.held) ++counts_.displaced;
  entry = {.page = host_page, .hash = HashBytes(bytes), .bytes = bytes.size(), .held = true};
  ++counts_.recorded;
}

bool PageCheck::Holds(uint64_t host_page) const {
  if (one_in_ == 0) return false;
  const Entry& entry = entries_[host_page % entries_.size()];
  return entry.held && entry.page == host_page;
}

PageCheck::Result PageCheck::Verify(uint64_t host_page, std::span<const std::byte> bytes) {
  if (!Holds(host_page)) return Result::kNotSampled;
  const Entry& entry = entries_[host_page % entries_.size()];
  ++counts_.checked;
  if (entry.bytes == bytes.size() && entry.hash == HashBytes(bytes)) return Result::kEqual;
  ++counts_.failed;
  return Result::kDiffers;
}

}  // namespace augur::memory
