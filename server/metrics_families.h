// FrontStats, EngineStats and the tiers' stats as Prometheus families. Used by
// server/metrics_exporter.cc and its test.
//
// Thread: any; reads atomics only.
// Failure: none.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/front_stats.h"
#include "server/metrics_exporter.h"

namespace augur::server {

void AppendFrontFamilies(const FrontStats& front, const std::string& version,
                         std::vector<prometheus::MetricFamily>* families);

void AppendEngineFamilies(const ExportedModel& model,
                          std::vector<prometheus::MetricFamily>* families);

// The tiers' families, with the labels of `out`.
class FamilyWriter;
void AppendTierFamilies(const ExportedModel& model, FamilyWriter* out);

// The five names that routers for vLLM read, with their labels.
void AppendRouterFamilies(const ExportedModel& model,
                          std::vector<prometheus::MetricFamily>* families);

}  // namespace augur::server
