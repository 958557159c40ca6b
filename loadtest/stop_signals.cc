#include "loadtest/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "loadtest/exit_status.h"

namespace augur::loadtest {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

StopSignals::StopSignals(std::function<void()> on_stop) : on_stop_(std::move(on_stop)) {
  thread_ = std::thread([this] { WaitForSignals(); });
}

StopSignals::~StopSignals() {
  ending_.store(true, std::memory_order_release);
  pthread_kill(thread_.native_handle(), SIGTERM);  // blocked there, so it only wakes sigwait
  thread_.join();
}

void StopSignals::WaitForSignals() {
  const sigset_t set = StopSet();
  int signal = 0;
  while (sigwait(&set, &signal) == 0 && !ending_.load(std::memory_order_acquire)) {
    if (stopped_.exchange(true, std::memory_order_acq_rel)) _exit(kExitInterrupted);
    on_stop_();
  }
}

}  // namespace augur::loadtest
