// augurd from configuration to exit status: binds, loads, warms up, serves, drains.
//
//   listen for gRPC and metrics   a port in use shows at once; `live` is answered during the load
//   load the model, start the engine
//   generate one real token       then readiness turns SERVING and the port file appears
//   serve until the first signal
//   drain                         not ready, no new work; running streams end, or UNAVAILABLE
//
// Thread: Run is called once, from main.
// Ownership: owns every part; destroys them in the reverse order of their making.
// Failure: Run prints one line to standard error and returns the exit status (server/exit_code.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/model/model_loader.h"
#include "kernels/backend.h"
#include "memory/base/clock.h"
#include "server/completion_service.h"
#include "server/engine_entry.h"
#include "server/exit_code.h"
#include "server/front_stats.h"
#include "server/grpc_server.h"
#include "server/health_service.h"
#include "server/liveness_watchdog.h"
#include "server/metrics_exporter.h"
#include "server/router.h"
#include "server/server_config.h"
#include "server/stop_request.h"
#include "server/text_intake.h"

namespace augur::server {

class Daemon {
 public:
  // `stop` outlives the daemon. `port_file` may be empty.
  Daemon(ServerConfig config, std::string port_file, StopRequest* stop);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  ExitCode Run();

 private:
  ExitCode Listen();
  ExitCode LoadModel();
  // Null after saying why.
  std::unique_ptr<kernels::Backend> MakeBackend() const;
  // Called by the thread that saw it, within the backend's call: streams end, readiness goes, and
  // the process ends with status 70 whatever that thread and the driver do.
  void OnDeviceFailure(const std::string& message);
  void StartEngine(engine::LoadedModel model);
  ExitCode BecomeReady();
  void LogReady(const engine::ModelInfo& info) const;
  void LogKv() const;
  // Not ready, and no new work.
  void TurnAway();
  void Drain();
  void WaitUntilDrained(int64_t deadline_ns);

  const ServerConfig config_;
  const std::string port_file_;
  StopRequest* const stop_;
  const memory::SteadyClock clock_;
  std::atomic<bool> serving_{false};

  FrontStats front_;
  HealthService health_;
  std::unique_ptr<kernels::Backend> backend_;
  engine::ModelInfo info_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  std::unique_ptr<memory::KvMemory> kv_;  // outlives the engine, whose runner uses it
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<EngineEntry> entry_;
  ServedModel model_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<TextIntake> intake_;  // after router_: its last jobs use it
  CompletionService service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<MetricsExporter> metrics_;
  std::unique_ptr<LivenessWatchdog> watchdog_;
};

// The one line that a failed start leaves.
void PrintFailure(const std::string& message);

}  // namespace augur::server
