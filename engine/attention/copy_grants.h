// The copy quota (copy_quota.h) where steps run: grants are written to device memory in the order
// of steps, and what steps took is read from the stamps that they brought back. Nothing waits.
//
// Thread: the engine's. Ownership: a few words of pinned memory; backend and transfers outlive it.
// Failure: Create, where there is no pinned memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/attention/copy_quota.h"
#include "kernels/backend.h"
#include "memory/device_transfers.h"

namespace augur::engine {

class CopyGrants {
 public:
  // granted: [1] on the device, DeviceAttention's. `transfers`, null or told of every grant.
  static absl::StatusOr<std::unique_ptr<CopyGrants>> Create(kernels::Backend* backend,
                                                            const CopyQuotaOptions& options,
                                                            int num_loads, int32_t* granted,
                                                            memory::DeviceTransfers* transfers);
  ~CopyGrants();
  CopyGrants(const CopyGrants&) = delete;
  CopyGrants& operator=(const CopyGrants&) = delete;

  // For a step of this load that is launched next.
  QuotaPlan Grant(int load);
  void Observe(const QuotaPlan& plan, const CopyMeasurement& measured) {
    quota_.Observe(plan, measured);
  }

  int ctas() const { return ctas_; }  // of the step launched last
  std::string Describe(int load) const { return quota_.Describe(load); }

 private:
  // Steps that may be under way and then some: a word is written again when they have read it.
  static constexpr int kWords = 16;

  CopyGrants(kernels::Backend* backend, const CopyQuotaOptions& options, int num_loads,
             int32_t* granted, memory::DeviceTransfers* transfers);
  void Put(int ctas);

  kernels::Backend* const backend_;
  int32_t* const granted_;
  memory::DeviceTransfers* const transfers_;
  CopyQuota quota_;
  int32_t* words_ = nullptr;  // [kWords], pinned
  int next_word_ = 0;
  int ctas_ = 0;
};

}  // namespace augur::engine
