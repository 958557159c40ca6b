#include "server/connection_limit.h"

#include <dlfcn.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <thread>

namespace augur::server {
namespace {

// Waits for a descriptor to come free, one after the other.
constexpr int kMaxWaits = 20;
constexpr std::chrono::milliseconds kWait(5);

std::atomic<uint64_t> refused{0};

// Descriptors are handed out from below, so this one's number says how many are open. A limit that
// is small already leaves half.
bool IsReserved(int fd) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const auto files = static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(std::numeric_limits<int>::max())));
  return fd >= std::max(files - kReservedFiles, files / 2);
}

void Refuse(int fd) {
  close(fd);
  const uint64_t count = refused.fetch_add(1, std::memory_order_relaxed) + 1;
  // 1, 2, 4, 8, ...: a flood must not fill the log.
  if ((count & (count - 1)) != 0) return;
  spdlog::warn("connections refused={}: the limit on open files is reached (ulimit -n)", count);
}

// Of one connection, which is gone (accept(2)).
bool IsOfConnection(int error) {
  return error == ECONNABORTED || error == EPROTO || error == ENETDOWN || error == ENETUNREACH ||
         error == EHOSTDOWN || error == EHOSTUNREACH || error == ENONET || error == ENOPROTOOPT;
}

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

int Accept(int listener, sockaddr* address, socklen_t* length, int flags) {
  const socklen_t room = length == nullptr ? 0 : *length;
  int waits = 0;
  while (true) {
    if (length != nullptr) *length = room;
    const auto fd = static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
    if (fd >= 0 && !IsReserved(fd)) return fd;
    if (fd >= 0) {
      Refuse(fd);
      continue;
    }
    if (IsOfConnection(errno)) continue;
    if (!IsShortage(errno)) return -1;
    // The next connection wakes the listener for all that wait.
    if (++waits > kMaxWaits) {
      errno = EAGAIN;
      return -1;
    }
    std::this_thread::sleep_for(kWait);
  }
}

}  // namespace

bool GuardsAccept() {
  return dlsym(RTLD_DEFAULT, "accept4") == reinterpret_cast<void*>(&::accept4);
}

uint64_t RefusedConnections() { return refused.load(std::memory_order_relaxed); }

}  // namespace augur::server

// Takes the place of libc's for every library of the process.
extern "C" int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  return augur::server::Accept(listener, address, length, flags);
}
