#include "engine/model/step_tables.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

// Lays out arrays behind each other, each on a 64-byte edge.
template <class T>
T* Take(std::byte* base, size_t count, size_t* at) {
  const size_t begin = (*at + 63) / 64 * 64;
  *at = begin + count * sizeof(T);
  return reinterpret_cast<T*>(base + begin);
}

StepArrays LayOut(std::byte* base, int rows, int sampled, size_t* bytes) {
  StepArrays arrays;
  *bytes = 0;
  arrays.token_ids = Take<int32_t>(base, rows, bytes);
  arrays.append = Take<kernels::AppendSegment>(base, rows, bytes);
  arrays.attend = Take<kernels::AttentionSegment>(base, rows, bytes);
  arrays.sampled_rows = Take<int32_t>(base, sampled, bytes);
  arrays.sampling = Take<kernels::SamplingRow>(base, sampled, bytes);
  return arrays;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepTables>> StepTables::Create(kernels::Backend* backend, int rows,
                                                               int sampled) {
  std::unique_ptr<StepTables> tables(new StepTables(backend, rows, sampled));
  bool good = tables->device_bytes_.allocated();
  for (const std::byte* host : tables->host_bytes_) good = good && host != nullptr;
  if (good) return tables;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for step tables, on the device or pinned: ", tables->bytes_,
                   " bytes for ", rows, " rows (batch, batched_tokens)"));
}

StepTables::StepTables(kernels::Backend* backend, int rows, int sampled)
    : backend_(backend), rows_(rows), sampled_(sampled) {
  LayOut(nullptr, rows, sampled, &bytes_);
  device_bytes_ = kernels::BackendArray<std::byte>(backend, bytes_);
  if (device_bytes_.allocated()) device_ = ArraysAt(device_bytes_.data());
  for (int i = 0; i < kRing; ++i) {
    host_bytes_[i] = static_cast<std::byte*>(backend->AllocateHost(bytes_));
    if (host_bytes_[i] == nullptr) continue;
    std::memset(host_bytes_[i], 0, bytes_);
    host_[i] = ArraysAt(host_bytes_[i]);
  }
}

StepTables::~StepTables() {
  for (std::byte* host : host_bytes_) {
    if (host != nullptr) backend_->Free(host);
  }
}

StepArrays StepTables::ArraysAt(std::byte* base) const {
  size_t bytes = 0;
  return LayOut(base, rows_, sampled_, &bytes);
}

const StepArrays& StepTables::BeginHost() {
  next_ = (next_ + 1) % kRing;
  backend_->Wait(marks_[next_]);
  return host_[next_];
}

void StepTables::Upload() {
  backend_->Copy(device_bytes_.data(), host_bytes_[next_], bytes_);
  marks_[next_] = backend_->Mark();
}

}  // namespace augur::engine
