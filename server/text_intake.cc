#include "server/text_intake.h"

#include <utility>

namespace augur::server {

TextIntake::TextIntake(const TextIntakeOptions& options, FrontStats* stats)
    : options_(options), stats_(stats) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { RunLoop(); });
}

TextIntake::~TextIntake() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool TextIntake::TryPost(int64_t bytes, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<int64_t>(queue_.size()) >= options_.max_jobs) return false;
    if (!queue_.empty() && queued_bytes_ + bytes > options_.max_bytes) return false;
    queue_.push_back({bytes, std::move(job)});
    queued_bytes_ += bytes;
    stats_->intake_requests.store(static_cast<int64_t>(queue_.size()));
    stats_->intake_bytes.store(queued_bytes_);
  }
  wake_.notify_one();
  return true;
}

void TextIntake::RunLoop() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= job.bytes;
      stats_->intake_requests.store(static_cast<int64_t>(queue_.size()));
      stats_->intake_bytes.store(queued_bytes_);
    }
    job.run();
  }
}

}  // namespace augur::server
