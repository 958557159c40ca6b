#include "server/client/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include "server/client/exit_status.h"

namespace augur::client {

InterruptWatch::InterruptWatch(grpc::ClientContext* context) : context_(context) {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_);
  thread_ = std::thread([this] { WaitForSignals(); });
}

InterruptWatch::~InterruptWatch() {
  stopping_.store(true, std::memory_order_release);
  pthread_kill(thread_.native_handle(), SIGTERM);  // blocked there, so it only wakes sigwait
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void InterruptWatch::WaitForSignals() {
  int signal = 0;
  while (sigwait(&signals_, &signal) == 0 && !stopping_.load(std::memory_order_acquire)) {
    if (interrupted_.exchange(true, std::memory_order_acq_rel)) _exit(kExitInterrupted);
    context_->TryCancel();
  }
}

}  // namespace augur::client
