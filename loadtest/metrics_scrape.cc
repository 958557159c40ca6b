#include "loadtest/metrics_scrape.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace augur::loadtest {
namespace {

constexpr timeval kWaitLimit = {.tv_sec = 10, .tv_usec = 0};
constexpr size_t kMaxPageBytes = 64 << 20;

absl::Status Unreachable(const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("--metrics: ", address, ": ", why));
}

// A connected socket, or -1 with errno.
int Connect(const addrinfo* peers) {
  int fd = -1;
  for (const addrinfo* peer = peers; peer != nullptr; peer = peer->ai_next) {
    fd = socket(peer->ai_family, peer->ai_socktype | SOCK_CLOEXEC, peer->ai_protocol);
    if (fd < 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kWaitLimit, sizeof kWaitLimit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kWaitLimit, sizeof kWaitLimit);
    if (connect(fd, peer->ai_addr, peer->ai_addrlen) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
  }
  return -1;
}

absl::StatusOr<std::string> Exchange(int fd, const std::string& address,
                                     const std::string& request) {
  for (size_t sent = 0; sent < request.size();) {
    const ssize_t got = send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Unreachable(address, std::strerror(errno));
    sent += static_cast<size_t>(got);
  }
  std::string answer;
  char buffer[16 << 10];
  while (answer.size() < kMaxPageBytes) {
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreachable(address, std::strerror(errno));
    if (got == 0) return answer;
    answer.append(buffer, static_cast<size_t>(got));
  }
  return Unreachable(address, "the page has more than 64 MiB");
}

}  // namespace

absl::StatusOr<std::vector<PrometheusSample>> ScrapeMetrics(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return Unreachable(address, "is not HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* peers = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &peers);
  if (error != 0) return Unreachable(address, gai_strerror(error));
  const int fd = Connect(peers);
  freeaddrinfo(peers);
  if (fd < 0) return Unreachable(address, std::strerror(errno));
  const absl::Cleanup closing = [fd] { close(fd); };

  // HTTP/1.0: the answer is not in chunks and ends with the connection.
  const absl::StatusOr<std::string> answer =
      Exchange(fd, address, absl::StrCat("GET /metrics HTTP/1.0\r\nHost: ", address, "\r\n\r\n"));
  if (!answer.ok()) return answer.status();
  const size_t body = answer->find("\r\n\r\n");
  const std::string first = answer->substr(0, answer->find("\r\n"));
  if (body == std::string::npos || first.rfind("HTTP/1.", 0) != 0 ||
      first.substr(8, 5) != " 200 ") {
    return Unreachable(address, absl::StrCat("answered \"", first.substr(0, 80), "\""));
  }
  return ParsePrometheusText(std::string_view(*answer).substr(body + 4));
}

}  // namespace augur::loadtest
