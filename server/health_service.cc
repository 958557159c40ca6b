#include "server/health_service.h"

#include <utility>
#include <vector>

#include "server/health_watcher.h"

namespace augur::server {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthService::~HealthService() = default;

HealthService::Status HealthService::StatusOf(const std::string& name) const {
  const auto found = statuses_.find(name);
  return found == statuses_.end() ? HealthCheckResponse::SERVICE_UNKNOWN : found->second;
}

void HealthService::Set(const std::string& name, bool serving) {
  std::vector<std::shared_ptr<HealthWatcher>> told;
  {
    // Queueing under the mutex keeps changes in order for every watcher.
    const std::lock_guard lock(mutex_);
    if (shut_down_) return;
    const Status status = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
    statuses_[name] = status;
    for (const auto& watcher : watchers_) {
      if (watcher->name() != name) continue;
      watcher->Tell(status);
      told.push_back(watcher);
    }
  }
  for (const auto& watcher : told) watcher->Pump();
}

void HealthService::Shutdown() {
  std::vector<std::shared_ptr<HealthWatcher>> told;
  {
    const std::lock_guard lock(mutex_);
    shut_down_ = true;
    for (auto& [name, status] : statuses_) status = HealthCheckResponse::NOT_SERVING;
    for (const auto& watcher : watchers_) {
      watcher->Tell(StatusOf(watcher->name()));
      watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this server is shutting down"));
      told.push_back(watcher);
    }
  }
  for (const auto& watcher : told) watcher->Pump();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Status status;
  {
    const std::lock_guard lock(mutex_);
    status = StatusOf(request->service());
  }
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "service: unknown name"));
    return reactor;
  }
  response->set_status(status);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const HealthCheckRequest* request) {
  // shared: the watcher's end names the watcher, which exists only once its end does.
  const auto place = std::make_shared<std::weak_ptr<HealthWatcher>>();
  const auto watcher =
      HealthWatcher::Create(request->service().substr(0, kMaxNameBytes), [this, place] {
        const std::lock_guard lock(mutex_);
        watchers_.erase(place->lock());
      });
  *place = watcher;
  Register(request->service(), watcher);
  watcher->Open();
  return watcher.get();
}

void HealthService::Register(const std::string& name,
                             const std::shared_ptr<HealthWatcher>& watcher) {
  const std::lock_guard lock(mutex_);
  if (name.size() > kMaxNameBytes) {
    watcher->End(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "service: expected at most 256 bytes"));
  } else if (shut_down_) {
    watcher->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "this server is shutting down"));
  } else if (watchers_.size() >= kMaxWatchers) {
    watcher->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watchers"));
  } else {
    watchers_.insert(watcher);
    watcher->Tell(StatusOf(name));
  }
}

}  // namespace augur::server
