// Merges on offer to BpeModel, the least first: a heap in which a place has eight children, one
// cache line. A whole text may be one piece; a million offers are then seven lines deep, where a
// binary heap goes down twenty, of which the last ones are in no cache.
//
// Thread: one. Ownership: keeps its memory when it is filled anew. Failure: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace augur::engine {

class MergeHeap {
 public:
  void Clear() { size_ = 0; }
  bool empty() const { return size_ == 0; }
  uint64_t least() const { return lines_[0].values[kFan - 1]; }

  // Those of which one is the least once this one is gone.
  std::span<const uint64_t> next() const {
    if (size_ < 2) return {};
    return {lines_[1].values, std::min(kFan, size_ - 1)};
  }

  // At the end, in no order: Order must follow.
  void Append(uint64_t value) {
    if ((size_ + kFan - 1) / kFan == lines_.size()) lines_.emplace_back();
    At(size_++) = value;
  }
  void Order() {
    for (size_t i = size_ / kFan + 1; i-- > 0;) {
      if (i < size_) SiftDown(i, At(i));
    }
  }

  void Push(uint64_t value) {
    Append(value);
    size_t i = size_ - 1;
    for (; i > 0 && value < At((i - 1) / kFan); i = (i - 1) / kFan) At(i) = At((i - 1) / kFan);
    At(i) = value;
  }

  void Pop() {
    const uint64_t last = At(--size_);
    if (size_ > 0) SiftDown(0, last);
  }

 private:
  static constexpr size_t kFan = 8;
  struct alignas(64) Line {
    uint64_t values[kFan];
  };

  // The first line has the root at its end, so that the children of i, 8 i + 1 and on, are line
  // i + 1.
  uint64_t& At(size_t i) { return lines_[(i + kFan - 1) / kFan].values[(i + kFan - 1) % kFan]; }

  // Puts `value` at i or, where children are less, below.
  void SiftDown(size_t i, uint64_t value) {
    while (kFan * i + 1 < size_) {
      const uint64_t* const children = lines_[i + 1].values;
      const size_t count = std::min(kFan, size_ - (kFan * i + 1));
      const size_t least = std::min_element(children, children + count) - children;
      if (children[least] >= value) break;
      At(i) = children[least];
      i = kFan * i + 1 + least;
    }
    At(i) = value;
  }

  std::vector<Line> lines_;
  size_t size_ = 0;
};

}  // namespace augur::engine
