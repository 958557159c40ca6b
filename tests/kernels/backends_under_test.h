// The backends of the twin tests, and memory that both they and the test may touch.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/check.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/make_cuda_backend.h"
#endif

namespace augur::kernels {

struct BackendUnderTest {
  std::string name;
  std::unique_ptr<Backend> backend;
  bool on_device = false;
};

// The CPU's, always; the device's where this build has it and the machine has one.
inline std::vector<BackendUnderTest> BackendsUnderTest() {
  std::vector<BackendUnderTest> backends;
  backends.push_back({"cpu", MakeCpuBackend({.num_threads = 2})});
#ifdef AUGUR_HAS_CUDA
  if (!FindCudaDevices().empty()) {
    std::string error;
    auto backend = MakeCudaBackend({}, &error);
    if (backend == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
    AUGUR_CHECK(backend != nullptr);
    backends.push_back({"cuda", std::move(backend), true});
  }
#endif
  return backends;
}

// The device's, planned for so many SMs fewer than it has (CudaBackendOptions); null without one.
inline std::unique_ptr<Backend> BackendLeavingSms([[maybe_unused]] int left) {
#ifdef AUGUR_HAS_CUDA
  const std::vector<CudaDevice> devices = FindCudaDevices();
  if (devices.empty()) return nullptr;
  const int sms = devices[0].num_sms - left;
  std::string error;
  auto backend = MakeCudaBackend({.product_sms = sms, .attention_sms = sms}, &error);
  if (backend == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
  AUGUR_CHECK(backend != nullptr);
  return backend;
#else
  return nullptr;
#endif
}

// The device's, with products chosen for few rows at a time (likewise); null without one.
inline std::unique_ptr<Backend> BackendForFewRows() {
#ifdef AUGUR_HAS_CUDA
  if (FindCudaDevices().empty()) return nullptr;
  std::string error;
  auto backend = MakeCudaBackend({.usual_decode_rows = 16}, &error);
  if (backend == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
  AUGUR_CHECK(backend != nullptr);
  return backend;
#else
  return nullptr;
#endif
}

// Of trivial elements. Ops run behind the host: Synchronize() before reading.
template <class T>
class SharedArray {
 public:
  SharedArray(Backend& backend, size_t count)
      : backend_(&backend), count_(count), data_(static_cast<T*>(backend.AllocateHost(Bytes()))) {
    AUGUR_CHECK(data_ != nullptr);
    std::memset(static_cast<void*>(data_), 0xff, Bytes());
  }
  SharedArray(Backend& backend, const std::vector<T>& values)
      : SharedArray(backend, values.size()) {
    if (count_ > 0) std::memcpy(static_cast<void*>(data_), values.data(), Bytes());
  }
  SharedArray(SharedArray&& other) noexcept
      : backend_(other.backend_), count_(other.count_), data_(other.data_) {
    other.data_ = nullptr;
  }
  SharedArray& operator=(SharedArray&&) = delete;
  ~SharedArray() {
    if (data_ != nullptr) backend_->Free(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::vector<T> ToVector() const { return {data_, data_ + count_}; }

 private:
  size_t Bytes() const { return count_ * sizeof(T); }

  Backend* backend_;
  size_t count_;
  T* data_;
};

}  // namespace augur::kernels
