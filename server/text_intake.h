// A bounded queue before a few threads: where text becomes tokens, off the threads that gRPC needs
// for its connections and for health checks.
//
// Thread: TryPost from any; jobs run on the intake's own threads, in order of arrival, several at a
// time.
// Ownership: a job owns what it captures. Jobs still queued at destruction are run, so that whoever
// waits for one gets an answer; make them quick to give up.
// Failure: TryPost says false when the queue is full, in jobs or in bytes; the job is then
// untouched.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/front_stats.h"

namespace augur::server {

struct TextIntakeOptions {
  int threads = 2;
  int64_t max_jobs = 512;
  int64_t max_bytes = 256 << 20;
};

class TextIntake {
 public:
  // `stats` outlives the intake.
  TextIntake(const TextIntakeOptions& options, FrontStats* stats);
  ~TextIntake();
  TextIntake(const TextIntake&) = delete;
  TextIntake& operator=(const TextIntake&) = delete;

  // `bytes` is what the job holds in memory while it waits. A single job may be larger than
  // max_bytes: it waits alone.
  bool TryPost(int64_t bytes, std::function<void()> job);

 private:
  struct Job {
    int64_t bytes;
    std::function<void()> run;
  };

  void RunLoop();

  const TextIntakeOptions options_;
  FrontStats* const stats_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  int64_t queued_bytes_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace augur::server
