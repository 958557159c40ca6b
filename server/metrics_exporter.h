// The daemon's numbers over HTTP for Prometheus. Only this and server/metrics_families touch
// prometheus-cpp. A scrape reads atomics of FrontStats and EngineStats and takes no lock of the
// engine or the front.
//
// Thread: Start, SetModel and Close from the lifecycle's thread; scrapes run on the exposer's own.
// Ownership: `front` and what SetModel points to outlive the exporter (or Close).
// Failure: Start says ALREADY_EXISTS when it cannot listen, naming the address.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine_stats.h"
#include "memory/residency_stats.h"
#include "memory/transfer_engine.h"
#include "server/front_stats.h"

namespace augur::server {

// What is known once a model is loaded.
struct ExportedModel {
  std::string name;  // label model_name
  const engine::EngineStats* stats = nullptr;
  int64_t num_blocks = 0;  // frames of the device pool
  int64_t block_bytes = 0;
  const memory::ResidencyStats* tiers = nullptr;      // null: not exported
  const memory::TransferEngine* transfers = nullptr;  // null without a host pool
  int64_t max_context = 0;
};

class MetricsExporter {
 public:
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Start(const std::string& listen,
                                                                const std::string& version,
                                                                const FrontStats* front);
  ~MetricsExporter();

  int port() const { return port_; }
  const std::string& address() const { return address_; }

  // From now on the engine's families are exported, too.
  void SetModel(const ExportedModel& model);

  // Stops listening: some 20 ms; 2 s where the port cannot be reached from here (civetweb polls).
  void Close();

 private:
  class Listener;

  MetricsExporter(std::unique_ptr<Listener> listener, int port, std::string address);

  std::unique_ptr<Listener> listener_;
  const int port_;
  const std::string address_;
};

}  // namespace augur::server
