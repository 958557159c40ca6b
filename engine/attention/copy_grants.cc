#include "engine/attention/copy_grants.h"

namespace augur::engine {

absl::StatusOr<std::unique_ptr<CopyGrants>> CopyGrants::Create(kernels::Backend* backend,
                                                               const CopyQuotaOptions& options,
                                                               int num_loads, int32_t* granted,
                                                               memory::DeviceTransfers* transfers) {
  std::unique_ptr<CopyGrants> grants(
      new CopyGrants(backend, options, num_loads, granted, transfers));
  if (grants->words_ == nullptr) {
    return absl::ResourceExhaustedError("no pinned memory for the copy quota: 64 bytes");
  }
  grants->Put(grants->quota_.first_ctas());
  return grants;
}

CopyGrants::CopyGrants(kernels::Backend* backend, const CopyQuotaOptions& options, int num_loads,
                       int32_t* granted, memory::DeviceTransfers* transfers)
    : backend_(backend),
      granted_(granted),
      transfers_(transfers),
      quota_(options, num_loads),
      words_(static_cast<int32_t*>(backend->AllocateHost(kWords * sizeof(int32_t)))) {}

CopyGrants::~CopyGrants() {
  backend_->Synchronize();
  if (words_ != nullptr) backend_->Free(words_);
}

QuotaPlan CopyGrants::Grant(int load) {
  const QuotaPlan plan = quota_.Plan(load);
  quota_.Commit(plan);
  if (plan.ctas != ctas_) Put(plan.ctas);
  return plan;
}

void CopyGrants::Put(int ctas) {
  int32_t* const word = words_ + next_word_;
  next_word_ = (next_word_ + 1) % kWords;
  *word = ctas;
  backend_->Copy(granted_, word, sizeof(*word));
  ctas_ = ctas;
  if (transfers_ != nullptr) transfers_->Grant(ctas);
}

}  // namespace augur::engine
