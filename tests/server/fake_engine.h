// An engine whose part the test plays: it keeps what was submitted and says nothing on its own.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "eventually.h"
#include "server/engine_entry.h"

namespace augur::server {

class FakeEngine final : public EngineEntry {
 public:
  // What Submit does; the default accepts.
  std::function<absl::Status()> on_submit = [] { return absl::OkStatus(); };

  absl::Status Submit(std::shared_ptr<engine::Request> request) override {
    absl::Status status = on_submit();
    if (!status.ok()) return status;
    request->sink->OnAccepted(0);
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    return absl::OkStatus();
  }

  void Wake() override { wakes.fetch_add(1); }

  // The next request in order of arrival; null when none comes.
  std::shared_ptr<engine::Request> Take() {
    std::shared_ptr<engine::Request> request;
    Eventually([&] {
      const std::lock_guard lock(mutex_);
      if (requests_.empty()) return false;
      request = std::move(requests_.front());
      requests_.pop_front();
      return true;
    });
    return request;
  }

  std::atomic<int> wakes{0};

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<engine::Request>> requests_;
};

inline engine::TokenChunk ChunkOf(std::string text, uint32_t tokens = 1) {
  engine::TokenChunk chunk;
  chunk.text = std::move(text);
  chunk.num_tokens = tokens;
  return chunk;
}

}  // namespace augur::server
