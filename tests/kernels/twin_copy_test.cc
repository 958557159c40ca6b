// Copies on every backend: each kind of memory, sizes on both sides of where a device changes its
// way of copying, odd places; and the neighbours stay as they were.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/backend_array.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {
namespace {

constexpr size_t kEdge = size_t{64} << 10;  // where CUDA's copies by a kernel end
constexpr size_t kMargin = 64;
constexpr size_t kSizes[] = {0, 1, 4, 15, 16, 100, 4096, 12347, kEdge - 4, kEdge, kEdge + 16};
constexpr size_t kOffsets[] = {0, 1, 4, 16};

std::vector<std::byte> Pattern(size_t bytes, int seed) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return pattern;
}

void ExpectCopied(const SharedArray<std::byte>& to, size_t at, const std::byte* from, size_t bytes,
                  const char* what) {
  std::vector<std::byte> expected(to.size(), std::byte{0xff});
  std::copy_n(from, bytes, expected.begin() + static_cast<ptrdiff_t>(at));
  ASSERT_EQ(to.ToVector(), expected) << what << " " << bytes << " bytes at " << at;
}

TEST(TwinCopyTest, EveryWayBetweenHostAndDevice) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    Backend& backend = *under_test.backend;
    for (const size_t bytes : kSizes) {
      for (const size_t offset : kOffsets) {
        const std::vector<std::byte> pageable = Pattern(bytes, 1);
        const SharedArray<std::byte> pinned(backend, Pattern(bytes + kMargin, 2));
        SharedArray<std::byte> first(backend, bytes + kMargin);
        SharedArray<std::byte> second(backend, bytes + kMargin);
        BackendArray<std::byte> device(&backend, bytes + kMargin);
        BackendArray<std::byte> other(&backend, bytes + kMargin);
        backend.Copy(device.data() + offset, pinned.data() + offset, bytes);
        backend.Copy(other.data(), device.data() + offset, bytes);
        backend.Copy(first.data() + offset, other.data(), bytes);
        backend.Copy(device.data() + offset, pageable.data(), bytes);
        backend.Copy(second.data() + offset, device.data() + offset, bytes);
        backend.Synchronize();
        ExpectCopied(first, offset, pinned.data() + offset, bytes, under_test.name.c_str());
        ExpectCopied(second, offset, pageable.data(), bytes, under_test.name.c_str());
      }
    }
  }
}

// What a step does: the host writes the next table only when the copy has passed, and reads what
// came back behind a mark.
TEST(TwinCopyTest, ARingOfTablesComesBackInOrder) {
  constexpr size_t kBytes = 10000;
  constexpr int kRing = 2;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    Backend& backend = *under_test.backend;
    std::vector<SharedArray<std::byte>> there, back;
    for (int i = 0; i < kRing; ++i) {
      there.emplace_back(backend, kBytes);
      back.emplace_back(backend, kBytes);
    }
    BackendArray<std::byte> device(&backend, kBytes);
    uint64_t marks[kRing] = {};
    for (int turn = 0; turn < 200; ++turn) {
      const int slot = turn % kRing;
      backend.Wait(marks[slot]);
      if (turn >= kRing) {
        ASSERT_EQ(back[slot].ToVector(), Pattern(kBytes, turn - kRing)) << under_test.name;
      }
      const std::vector<std::byte> pattern = Pattern(kBytes, turn);
      std::memcpy(there[slot].data(), pattern.data(), kBytes);
      backend.Copy(device.data(), there[slot].data(), kBytes);
      backend.Copy(back[slot].data(), device.data(), kBytes);
      marks[slot] = backend.Mark();
    }
    backend.Synchronize();
  }
}

}  // namespace
}  // namespace augur::kernels
