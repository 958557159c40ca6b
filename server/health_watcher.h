// One Watch stream of the health service: writes the statuses it is told, in order, one write at a
// time.
//
// Thread: Tell, End and Pump from any; On* on gRPC's.
// Ownership: shared by the service (until it is removed) and gRPC (until OnDone).
// Failure: a reader that falls more than kMaxWaiting changes behind skips the oldest of them, so
// that it ends on the latest status.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "grpc/health/v1/health.pb.h"

namespace augur::server {

class HealthWatcher final : public grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>,
                            public std::enable_shared_from_this<HealthWatcher> {
 public:
  using Response = grpc::health::v1::HealthCheckResponse;
  static constexpr size_t kMaxWaiting = 64;

  // `on_end` is called once, from OnDone, without locks held: the service forgets the
  // watcher.
  static std::shared_ptr<HealthWatcher> Create(std::string name, std::function<void()> on_end);

  const std::string& name() const { return name_; }
  // Queues a status; one equal to the one before is not repeated.
  void Tell(Response::ServingStatus status);
  // Queues the end. The first one counts.
  void End(const grpc::Status& status);
  // Sends the headers; from the handler, before it returns.
  void Open();
  // Writes what is queued, as far as gRPC takes it. Not under a lock that a handler takes: gRPC may
  // run other calls' handlers inside.
  void Pump();

  void OnSendInitialMetadataDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  HealthWatcher(std::string name, std::function<void()> on_end);

  const std::string name_;
  std::mutex mutex_;
  std::function<void()> on_end_;
  std::shared_ptr<HealthWatcher> self_;  // shared: gRPC's claim, until OnDone
  std::deque<Response::ServingStatus> waiting_;
  std::optional<Response::ServingStatus> last_told_;
  std::optional<grpc::Status> end_;
  Response in_flight_;
  bool started_ = false;
  bool writing_ = false;
  bool finish_called_ = false;
};

}  // namespace augur::server
