#include "tests/support/allocation_count.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace augur::tests {
namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

}  // namespace

AllocationPeak::AllocationPeak() : before_(live) { peak = before_; }

int64_t AllocationPeak::bytes() const { return peak - before_; }

void* Allocate(size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
  if (now > peak) peak = now;
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace augur::tests

void* operator new(size_t size) { return augur::tests::Allocate(size); }
void* operator new[](size_t size) { return augur::tests::Allocate(size); }
void operator delete(void* memory) noexcept { augur::tests::Free(memory); }
void operator delete[](void* memory) noexcept { augur::tests::Free(memory); }
void operator delete(void* memory, size_t) noexcept { augur::tests::Free(memory); }
void operator delete[](void* memory, size_t) noexcept { augur::tests::Free(memory); }
