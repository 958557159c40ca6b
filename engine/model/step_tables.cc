#include "engine/model/step_tables.h"

#include "absl/strings/str_cat.h"

namespace augur::engine {

absl::StatusOr<std::unique_ptr<StepTables>> StepTables::Create(kernels::Backend* backend,
                                                               size_t bytes) {
  std::unique_ptr<StepTables> tables(new StepTables(backend, bytes));
  bool good = tables->device_bytes_.allocated();
  for (const std::byte* host : tables->host_bytes_) good = good && host != nullptr;
  if (good) return tables;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for step tables, on the device or pinned: ", bytes,
                   " bytes (batch, batched_tokens)"));
}

StepTables::StepTables(kernels::Backend* backend, size_t bytes)
    : backend_(backend), bytes_(bytes), device_bytes_(backend, bytes) {
  for (std::byte*& host : host_bytes_) {
    host = static_cast<std::byte*>(backend_->AllocateHost(bytes_));
  }
}

StepTables::~StepTables() {
  for (std::byte* host : host_bytes_) {
    if (host != nullptr) backend_->Free(host);
  }
}

void StepTables::Begin() {
  next_ = (next_ + 1) % kRing;
  used_ = 0;
  backend_->Wait(marks_[next_]);
}

void StepTables::Upload() {
  if (used_ > 0) backend_->Copy(device_bytes_.data(), host_bytes_[next_], used_);
  marks_[next_] = backend_->Mark();
}

}  // namespace augur::engine
