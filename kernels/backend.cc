#include "kernels/backend.h"

#include "kernels/check.h"

namespace augur::kernels {

void Backend::SampledAttention(const SampledAttentionParams&) {
  AUGUR_CHECK(!"sampled attention on this backend");
}
void Backend::SumValues(const SumValuesParams&) { AUGUR_CHECK(!"sums of values on this backend"); }
void Backend::SampleQueries(const SampleQueriesParams&) {
  AUGUR_CHECK(!"sampled queries on this backend");
}

TrainingOps* Backend::training_ops() {
  AUGUR_CHECK(!"training on this backend");
  return nullptr;
}

}  // namespace augur::kernels
