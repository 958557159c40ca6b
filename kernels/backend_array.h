// An array in a backend's memory, filled once at load.
//
// Thread: as Backend. Ownership: owns the memory; the backend outlives it. Failure: where memory is
// short the array is empty and allocated() says so.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "kernels/backend.h"

namespace augur::kernels {

template <class T>
class BackendArray {
 public:
  BackendArray() = default;
  // Uninitialised.
  BackendArray(Backend* backend, size_t count)
      : backend_(backend),
        data_(static_cast<T*>(backend->Allocate(count * sizeof(T)))),
        count_(data_ == nullptr ? 0 : count) {}
  // A copy of `values`, made when this returns.
  BackendArray(Backend* backend, std::span<const T> values) : BackendArray(backend, values.size()) {
    if (count_ == 0) return;
    backend->Copy(data_, values.data(), values.size_bytes());
    backend->Synchronize();
  }
  BackendArray(BackendArray&& other) noexcept { Swap(other); }
  BackendArray& operator=(BackendArray&& other) noexcept {
    BackendArray old(std::move(*this));
    Swap(other);
    return *this;
  }
  ~BackendArray() {
    if (data_ != nullptr) backend_->Free(data_);
  }

  bool allocated() const { return data_ != nullptr; }
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  T* data() { return data_; }
  const T* data() const { return data_; }

 private:
  void Swap(BackendArray& other) {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  Backend* backend_ = nullptr;
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace augur::kernels
