#include "server/health_watcher.h"

#include <utility>

namespace augur::server {

std::shared_ptr<HealthWatcher> HealthWatcher::Create(std::string name,
                                                     std::function<void()> on_end) {
  std::shared_ptr<HealthWatcher> watcher(new HealthWatcher(std::move(name), std::move(on_end)));
  watcher->self_ = watcher;
  return watcher;
}

HealthWatcher::HealthWatcher(std::string name, std::function<void()> on_end)
    : name_(std::move(name)), on_end_(std::move(on_end)) {}

void HealthWatcher::Open() { StartSendInitialMetadata(); }

void HealthWatcher::Tell(Response::ServingStatus status) {
  const std::lock_guard lock(mutex_);
  if (end_.has_value() || last_told_ == status) return;
  last_told_ = status;
  if (waiting_.size() >= kMaxWaiting) waiting_.pop_front();
  waiting_.push_back(status);
}

void HealthWatcher::End(const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  if (!end_.has_value()) end_ = status;
}

void HealthWatcher::OnSendInitialMetadataDone(bool /*ok*/) {
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  Pump();
}

void HealthWatcher::OnWriteDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) waiting_.clear();
  }
  Pump();
}

void HealthWatcher::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
  }
  End(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled by the client"));
  Pump();
}

void HealthWatcher::OnDone() {
  std::function<void()> on_end;
  std::shared_ptr<HealthWatcher> self;
  {
    // Also waits for a thread that is still on its way out of a callback.
    const std::lock_guard lock(mutex_);
    on_end = std::move(on_end_);
    self = std::move(self_);
  }
  if (on_end) on_end();
}

void HealthWatcher::Pump() {
  // Finish may end in OnDone on another thread before it returns here.
  const std::shared_ptr<HealthWatcher> keep = shared_from_this();
  bool write = false;
  {
    const std::lock_guard lock(mutex_);
    if (!started_ || writing_ || finish_called_) return;
    if (!waiting_.empty()) {
      in_flight_.set_status(waiting_.front());
      waiting_.pop_front();
      writing_ = true;
      write = true;
    } else if (end_.has_value()) {
      finish_called_ = true;
    } else {
      return;
    }
  }
  if (write) {
    StartWrite(&in_flight_);
  } else {
    Finish(*end_);
  }
}

}  // namespace augur::server
