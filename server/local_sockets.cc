#include "server/local_sockets.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace augur::server {
namespace {

// -1 where `fd` is no bound TCP socket.
int LocalPort(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return -1;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  }
  return -1;
}

// False for one that listens, or did.
bool IsConnected(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
}

std::vector<int> SocketsOf(int port, bool connected) {
  std::vector<int> sockets;
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc/self/fd", error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd >= 0 && LocalPort(fd) == port && IsConnected(fd) == connected) sockets.push_back(fd);
  }
  return sockets;
}

}  // namespace

void StopListening(int port) {
  for (const int fd : SocketsOf(port, /*connected=*/false)) shutdown(fd, SHUT_RD);
}

int EndConnections(int port) {
  int waiting = 0;
  for (const int fd : SocketsOf(port, /*connected=*/true)) {
    shutdown(fd, SHUT_WR);
    int unacknowledged = 0;
    if (ioctl(fd, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0) ++waiting;
  }
  return waiting;
}

}  // namespace augur::server
