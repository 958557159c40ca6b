// The recording half of DeviceRunner: which steps are recorded, and which of them a step runs as.
#include <algorithm>

#include "engine/model/device_runner.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::Backend;

bool Covers(const AttentionCalls& all, const AttentionCalls& some) {
  return all.dense >= some.dense && all.sparse >= some.sparse && all.forecast >= some.forecast &&
         all.infinigen >= some.infinigen && all.tiered >= some.tiered && all.exact >= some.exact &&
         all.sampled >= some.sampled;
}

}  // namespace

std::vector<int> DecodeBuckets(int max_segments) {
  std::vector<int> buckets;
  for (int size = 1; size < max_segments; size += size < 8 ? size : size < 64 ? 8 : 32) {
    buckets.push_back(size);
  }
  buckets.push_back(max_segments);
  return buckets;
}

std::vector<int> LengthClasses(int max_blocks) {
  std::vector<int> classes;
  for (int blocks = 128; blocks < max_blocks; blocks *= 4) classes.push_back(blocks);
  classes.push_back(max_blocks);
  return classes;
}

// Dense steps, steps of what the deployment's requests mostly are, and whatever else may come.
std::vector<AttentionCalls> DeviceRunner::RecordedCalls() const {
  const bool tiered = options_.max_slots > 0;
  const bool sampled = options_.values.sampled, both = options_.values.request_override;
  std::vector<AttentionCalls> calls;
  // Of one mode of values, each that requests may have.
  const auto record = [&](AttentionCalls one) {
    for (const bool mode : {sampled, !sampled}) {
      one.exact = !mode;
      one.sampled = mode;
      if (mode == sampled || both) calls.push_back(one);
    }
  };
  if (options_.resident) record({.dense = true});
  if (options_.max_top_k > 0) {
    AttentionCalls mostly{.sparse = options_.decode_policy == AttentionPolicy::kSparse,
                          .forecast = options_.decode_policy == AttentionPolicy::kForecast,
                          .infinigen = options_.decode_policy == AttentionPolicy::kInfinigen,
                          .tiered = tiered};
    if (mostly.selects()) {
      record(mostly);
      // Beside short ones, which read everything (dense_len).
      mostly.dense = options_.resident;
      if (mostly.dense) record(mostly);
    }
  } else if (!both) {
    return calls;
  }
  const bool selects = options_.max_top_k > 0;
  calls.push_back({.dense = options_.resident,
                   .sparse = selects,
                   .forecast = selects && options_.has_forecast,
                   .infinigen = selects && has_infinigen(),
                   .tiered = tiered,
                   .exact = !sampled || both,
                   .sampled = sampled || both});
  return calls;
}

const AttentionCalls& DeviceRunner::CoveringCalls(const AttentionCalls& calls) const {
  const auto found = std::find_if(recorded_.begin(), recorded_.end(),
                                  [&](const AttentionCalls& all) { return Covers(all, calls); });
  AUGUR_CHECK(found != recorded_.end());
  return *found;
}

void DeviceRunner::RecordGraphs() {
  recorded_ = RecordedCalls();
  for (const AttentionCalls& calls : recorded_) {
    for (const int bucket : buckets_) {
      for (const int blocks : classes_) {
        const StepShape shape{.phases = {.decode_rows = bucket,
                                         .rows = bucket,
                                         .beside_copies = calls.tiered && calls.selects()},
                              .sampled = bucket,
                              .max_blocks = blocks,
                              .calls = calls};
        attention_->Begin();
        host_ = {};
        PadToGraph(bucket);
        decode_tables_->Begin();
        const StepArrays arrays = Put(decode_tables_.get());
        attention_->Finish(decode_tables_.get(), calls, bucket, blocks);
        const int load = static_cast<int>(graphs_.size());
        RecordedStep& step =
            graphs_.try_emplace({calls, bucket, blocks}, nullptr, load).first->second;
        step.graph = backend_->Record([&](Backend* recorder) { RunOps(recorder, shape, arrays); });
      }
    }
  }
}

absl::Status DeviceRunner::CreateGrants(const CopyQuotaOptions& options) {
  AUGUR_ASSIGN_OR_RETURN(grants_,
                         CopyGrants::Create(backend_, options, static_cast<int>(graphs_.size()),
                                            attention_->granted_ctas(), transfers_));
  return absl::OkStatus();
}

absl::Status DeviceRunner::SetCopyCtas(const CopyQuotaOptions& options) {
  backend_->Synchronize();
  has_ahead_ = false;
  graphs_.clear();
  attention_->set_copy_ctas(options.max_ctas);
  RecordGraphs();
  return CreateGrants(options);
}

void DeviceRunner::SetDrivenReuse(float reuse) {
  backend_->Synchronize();
  has_ahead_ = false;
  graphs_.clear();
  attention_->set_driven_reuse(reuse);
  RecordGraphs();
}

QuotaPlan DeviceRunner::LaunchGraph(const GraphKey& key) {
  const RecordedStep& step = graphs_.at(key);
  QuotaPlan quota;
  if (std::get<0>(key).tiered) quota = grants_->Grant(step.load);
  backend_->Launch(*step.graph);
  return quota;
}

DeviceRunner::GraphKey DeviceRunner::KeyOf(const StepShape& shape) const {
  return {CoveringCalls(shape.calls),
          *std::lower_bound(buckets_.begin(), buckets_.end(), shape.phases.rows),
          *std::lower_bound(classes_.begin(), classes_.end(), shape.max_blocks)};
}

}  // namespace augur::engine
