// grpc.health.v1.Health over a table of names and statuses: Check answers from it, Watch streams
// every change.
//
// gRPC's own health service keeps a server from shutting down while a client watches
// (server/README.md, Decisions); this one ends its watchers itself.
//
// Thread: Set and Shutdown from any; handlers on gRPC's threads, none of which waits for anything
// but a mutex.
// Ownership: outlives the gRPC server; watchers are shared with gRPC until their OnDone.
// Failure: Check of an unknown name is NOT_FOUND, Watch of one starts with SERVICE_UNKNOWN. More
// watchers than kMaxWatchers are refused with RESOURCE_EXHAUSTED, names longer than kMaxNameBytes
// with INVALID_ARGUMENT.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"

namespace augur::server {

inline constexpr char kServiceName[] = "augur.v1.Completions";
inline constexpr char kLiveName[] = "live";

class HealthWatcher;

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  static constexpr size_t kMaxWatchers = 1024;
  static constexpr size_t kMaxNameBytes = 256;

  ~HealthService() override;

  void Set(const std::string& name, bool serving);
  // Tells every watcher NOT_SERVING and ends its stream with UNAVAILABLE; later calls of Set are
  // ignored.
  void Shutdown();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // With mutex_ held.
  Status StatusOf(const std::string& name) const;
  // Queues the first status, or the refusal.
  void Register(const std::string& name, const std::shared_ptr<HealthWatcher>& watcher);

  std::mutex mutex_;
  std::map<std::string, Status> statuses_;
  std::set<std::shared_ptr<HealthWatcher>> watchers_;  // shared: gRPC's callbacks hold them too
  bool shut_down_ = false;
};

}  // namespace augur::server
