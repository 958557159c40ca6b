// A block of raw memory, aligned for the widest vector, freed with its owner.
//
// Thread: plain data. Ownership: unique. Failure: data() is null when the memory is not there.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace augur::kernels {

inline constexpr size_t kVectorAlignment = 64;  // one AVX-512 register, one cache line

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kVectorAlignment, RoundUp(bytes)))),
        bytes_(data_ == nullptr ? 0 : bytes) {}

  std::byte* data() const { return data_.get(); }
  float* floats() const { return reinterpret_cast<float*>(data_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  struct FreeMemory {
    void operator()(std::byte* data) const { std::free(data); }
  };
  static size_t RoundUp(size_t bytes) {
    const size_t least = bytes == 0 ? kVectorAlignment : bytes;
    return (least + kVectorAlignment - 1) / kVectorAlignment * kVectorAlignment;
  }

  std::unique_ptr<std::byte, FreeMemory> data_;
  size_t bytes_ = 0;
};

}  // namespace augur::kernels
