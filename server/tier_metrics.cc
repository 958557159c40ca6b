// What the tiers did, as Prometheus families: waits, copies, slots, choices.
#include <array>

#include "absl/strings/str_cat.h"
#include "memory/residency_stats.h"
#include "memory/transfer_engine.h"
#include "server/family_writer.h"
#include "server/metric_names.h"
#include "server/metrics_families.h"

namespace augur::server {
namespace {

namespace names = metric_names;
using prometheus::MetricType;

constexpr double kNs = 1e-9;

struct KindLabels {
  const char* direction;
  const char* kind;
};
constexpr std::array<KindLabels, static_cast<size_t>(memory::TransferKind::kCount)> kKinds = {{
    {"host_to_device", "fetch"},
    {"host_to_device", "prefetch"},
    {"host_to_device", "restore"},
    {"device_to_host", "spill"},
}};
constexpr std::array<const char*, static_cast<size_t>(memory::WaitCause::kCount)> kCauses = {
    "prefetch_late", "fetch", "first_layer"};

void AppendTransfers(const memory::TransferStats& stats, FamilyWriter* out) {
  out->Begin(names::kTransferBytes, "Bytes copied between the pools.", MetricType::Counter);
  for (size_t i = 0; i < kKinds.size(); ++i) {
    out->Sample(static_cast<double>(stats.by_kind[i].finished_bytes),
                {{"direction", kKinds[i].direction}, {"kind", kKinds[i].kind}});
  }
  out->Begin(names::kTransferCopies,
             "Copies between the pools: a page or the compressed keys of a "
             "block each.",
             MetricType::Counter);
  for (size_t i = 0; i < kKinds.size(); ++i) {
    out->Sample(static_cast<double>(stats.by_kind[i].finished_copies),
                {{"direction", kKinds[i].direction}, {"kind", kKinds[i].kind}});
  }
  out->Gauge(names::kTransferQueue, "Copies that have not begun.", stats.queued_copies);
  out->Gauge(names::kTransferOldest, "Age of the oldest copy that has not begun.",
             static_cast<double>(stats.oldest_queued_ns) * kNs);
  out->Begin(names::kTransferCtas,
             "Units that copy (threads, or CTAs that fetch for a step): at hand and at work now.",
             MetricType::Gauge);
  out->Sample(stats.units, {{"state", "granted"}});
  out->Sample(stats.units_busy, {{"state", "busy"}});
}

void AppendWaits(const memory::ResidencyStats& tiers, FamilyWriter* out) {
  out->Begin(
      names::kTransferWait,
      "Time that a layer waited for blocks, by cause: foretold but late, fetched on need, the "
      "first layer that is not resident.",
      MetricType::Histogram);
  for (size_t i = 0; i < kCauses.size(); ++i) {
    out->Buckets(tiers.wait_seconds[i], {{"cause", kCauses[i]}});
  }
  out->Begin(names::kPrefetchBlocks,
             "Pages that decode steps took from the host: there when the layer asked (hit), on the "
             "way (late), not foretold (miss).",
             MetricType::Counter);
  out->Sample(static_cast<double>(tiers.prefetch_hit), {{"result", "hit"}});
  out->Sample(static_cast<double>(tiers.prefetch_late), {{"result", "late"}});
  out->Sample(static_cast<double>(tiers.prefetch_miss), {{"result", "miss"}});
}

void AppendChoices(const memory::ResidencyStats& tiers, FamilyWriter* out) {
  uint64_t chosen = 0, reused = 0, found = 0, wanted = 0;
  for (int layer = 0; layer < tiers.num_layers; ++layer) {
    chosen += tiers.layers[layer].chosen_blocks;
    reused += tiers.layers[layer].reused_blocks;
    found += tiers.layers[layer].recall_found;
    wanted += tiers.layers[layer].recall_wanted;
  }
  out->Counter(names::kKvChosen, "Blocks that scores chose in tiered decode steps.", chosen);
  out->Counter(names::kKvReused, "Of those, chosen by the token before as well.", reused);
  out->Begin(names::kKvResident,
             "Chosen blocks that were on the device, by when they were last used.",
             MetricType::Counter);
  out->Sample(static_cast<double>(tiers.resident_last), {{"since", "last_token"}});
  out->Sample(static_cast<double>(tiers.resident_spare), {{"since", "earlier"}});
  out->Histogram(names::kKvStackDistance,
                 "Blocks of the group used since a chosen block was last used, itself counted; "
                 "sampled.",
                 tiers.stack_distance);
  out->Begin(names::kForecastRecall,
             "Sampled: blocks that a layer's own query would choose, by whether the Forecast had.",
             MetricType::Counter);
  out->Sample(static_cast<double>(found), {{"result", "found"}});
  out->Sample(static_cast<double>(wanted - found), {{"result", "missed"}});
  out->Counter(names::kCheckedPages, "Fetched pages whose hash equalled the written one's.",
               tiers.checked_pages);
}

void AppendLayers(const memory::ResidencyStats& tiers, FamilyWriter* out) {
  using Layer = memory::ResidencyStats::Layer;
  const auto family = [&](const char* name, const char* help, const auto& value) {
    out->Begin(name, help, MetricType::Counter);
    for (int layer = 0; layer < tiers.num_layers; ++layer) {
      out->Sample(value(tiers.layers[layer]), {{"layer", absl::StrCat(layer)}});
    }
  };
  family(names::kLayerWait, "Time that the layer waited for blocks.",
         [](const Layer& layer) { return static_cast<double>(layer.wait_ns) * kNs; });
  family(names::kLayerChosen, "Blocks that scores chose.",
         [](const Layer& layer) { return static_cast<double>(layer.chosen_blocks); });
  family(names::kLayerReused, "Of those, chosen by the token before as well.",
         [](const Layer& layer) { return static_cast<double>(layer.reused_blocks); });
  family(names::kLayerFetched, "Pages that came from the host.",
         [](const Layer& layer) { return static_cast<double>(layer.fetched_blocks); });
}

void AppendSampled(const memory::ResidencyStats& tiers, FamilyWriter* out) {
  out->Counter(names::kSampledDraws,
               "Rows of values that sampled attention drew, over query heads, repetitions counted.",
               tiers.sampled_draws);
  out->Begin(names::kSampledRows,
             "Distinct rows of those: for a query head, and for a KV head (rows that were read).",
             MetricType::Counter);
  out->Sample(static_cast<double>(tiers.sampled_rows), {{"distinct_for", "query_head"}});
  out->Sample(static_cast<double>(tiers.sampled_distinct_rows), {{"distinct_for", "kv_head"}});
  out->Counter(names::kSampledHostRows, "Of the latter, rows that were read in host pages.",
               tiers.host_rows);
  out->Counter(names::kSampledFeatures, "Features of keys that sampled queries read.",
               tiers.sampled_features);
  out->Begin(names::kDecodeBytes,
             "Bytes that decode steps took from the host: whole pages, keys alone, values behind "
             "them, single rows of values.",
             MetricType::Counter);
  out->Sample(static_cast<double>(tiers.page_bytes), {{"kind", "page"}});
  out->Sample(static_cast<double>(tiers.key_bytes), {{"kind", "keys"}});
  out->Sample(static_cast<double>(tiers.value_bytes), {{"kind", "values"}});
  out->Sample(static_cast<double>(tiers.row_bytes), {{"kind", "rows"}});
}

void AppendSlots(const engine::EngineStats& stats, FamilyWriter* out) {
  out->Begin(names::kKvSlots, "Frames of the device pool and blocks of the host pool by state.",
             MetricType::Gauge);
  const auto tier = [&](const char* name, int64_t held, int64_t cached, int64_t free) {
    out->Sample(static_cast<double>(held), {{"tier", name}, {"state", "held"}});
    out->Sample(static_cast<double>(cached), {{"tier", name}, {"state", "cached"}});
    out->Sample(static_cast<double>(free), {{"tier", name}, {"state", "free"}});
  };
  tier("device", stats.blocks_held, stats.blocks_cached, stats.blocks_free);
  tier("host", stats.host_blocks_held, stats.host_blocks_cached, stats.host_blocks_free);
}

}  // namespace

void AppendTierFamilies(const ExportedModel& model, FamilyWriter* out) {
  AppendSlots(*model.stats, out);
  AppendWaits(*model.tiers, out);
  AppendChoices(*model.tiers, out);
  AppendLayers(*model.tiers, out);
  AppendSampled(*model.tiers, out);
  memory::TransferStats transfers;
  if (model.transfers != nullptr) transfers = model.transfers->Stats();
  AppendTransfers(transfers, out);
  out->Begin(names::kCtaSeconds, "Time of the units that copy and of those that attend.",
             MetricType::Counter);
  out->Sample(static_cast<double>(transfers.busy_ns) * kNs, {{"role", "copy"}});
  out->Sample(static_cast<double>(model.tiers->attention_ns) * kNs, {{"role", "attention"}});
}

}  // namespace augur::server
