#include "server/stop_request.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "server/exit_code.h"

namespace augur::server {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);  // the terminal is gone
  return set;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void StopRequest::BeginLoading() {
  const std::lock_guard lock(mutex_);
  loading_ = true;
}

void StopRequest::EndLoading() {
  const std::lock_guard lock(mutex_);
  loading_ = false;
}

void StopRequest::Raise() {
  const std::lock_guard lock(mutex_);
  if (loading_) {
    std::fputs("augurd: stopped by a signal while the model was loading\n", stderr);
    std::_Exit(kExitClean);
  }
  ++count_;
  changed_.notify_all();
}

int StopRequest::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void StopRequest::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return count_ > 0; });
}

void StopRequest::WaitForNs(int64_t ns) {
  std::unique_lock lock(mutex_);
  const int before = count_;
  changed_.wait_for(lock, std::chrono::nanoseconds(ns), [&] { return count_ > before; });
}

SignalThread::SignalThread(StopRequest* stop)
    : thread_([this, stop] {
        const sigset_t set = StopSignals();
        int signal = 0;
        while (sigwait(&set, &signal) == 0) {
          if (ending_.load()) return;
          stop->Raise();
        }
      }) {}

SignalThread::~SignalThread() {
  ending_.store(true);
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

}  // namespace augur::server
