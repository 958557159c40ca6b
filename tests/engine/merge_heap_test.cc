#include "engine/tokenizer/merge_heap.h"

#include <gtest/gtest.h>

#include <queue>
#include <random>

namespace augur::engine {
namespace {

// Of every size up to several lines, begun all at once and gone on with one by one.
TEST(MergeHeapTest, TheLeastIsAlwaysFirst) {
  std::mt19937_64 random(1);
  MergeHeap heap;  // one for all, as a thread has it
  for (int size = 0; size < 700; ++size) {
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> expected;
    heap.Clear();
    for (int i = 0; i < size; ++i) {
      const uint64_t value = random() % 1000;  // some are equal
      heap.Append(value);
      expected.push(value);
    }
    heap.Order();
    for (int i = 0; i < 2 * size; ++i) {
      if (!expected.empty() && random() % 3 != 0) {
        ASSERT_EQ(heap.least(), expected.top());
        heap.Pop();
        expected.pop();
      } else {
        const uint64_t value = random() % 1000;
        heap.Push(value);
        expected.push(value);
      }
    }
    for (; !expected.empty(); expected.pop(), heap.Pop()) ASSERT_EQ(heap.least(), expected.top());
    ASSERT_TRUE(heap.empty());
  }
}

}  // namespace
}  // namespace augur::engine
