// Random choices that a seed fixes for ever: the same on every machine and standard library.
//
// Thread: one owner. Ownership: a value. Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace augur::loadtest {

// SplitMix64; good enough to choose words with, not for secrets.
class SeededDraw {
 public:
  explicit SeededDraw(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, n), n from 1 to 2^32.
  uint64_t Below(uint64_t n) { return ((Next() >> 32) * n) >> 32; }
  // In [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t left = items->size(); left > 1; --left) {
      std::swap((*items)[left - 1], (*items)[static_cast<size_t>(Below(left))]);
    }
  }

 private:
  uint64_t state_;
};

// A seed of its own for one document of one task.
inline uint64_t SeedOf(uint64_t seed, std::string_view task, uint64_t document) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : task) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return SeededDraw(SeededDraw(seed ^ hash).Next() + document).Next();
}

}  // namespace augur::loadtest
