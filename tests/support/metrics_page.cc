#include "tests/support/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <vector>

namespace augur::tests {
namespace {

// {`name`, `a="b"`, `c="d"`}
std::vector<std::string> SplitSample(const std::string& text) {
  const size_t brace = text.find('{');
  std::vector<std::string> parts = {text.substr(0, brace)};
  if (brace == std::string::npos) return parts;
  std::istringstream labels(text.substr(brace + 1, text.rfind('}') - brace - 1));
  for (std::string label; std::getline(labels, label, ',');) parts.push_back(label);
  return parts;
}

bool Matches(const std::vector<std::string>& wanted, const std::vector<std::string>& found) {
  if (wanted[0] != found[0]) return false;
  for (size_t i = 1; i < wanted.size(); ++i) {
    bool seen = false;
    for (size_t j = 1; j < found.size(); ++j) seen = seen || found[j] == wanted[i];
    if (!seen) return false;
  }
  return true;
}

}  // namespace

std::string FetchMetrics(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string page;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0) {
    const std::string request =
        "GET /metrics HTTP/1.1\r\nHost: " + address + "\r\nConnection: close\r\n\r\n";
    if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
      char buffer[16 << 10];
      for (ssize_t got = 0; (got = read(fd, buffer, sizeof buffer)) > 0;) {
        page.append(buffer, static_cast<size_t>(got));
      }
    }
  }
  close(fd);
  const size_t body = page.find("\r\n\r\n");
  return body == std::string::npos ? "" : page.substr(body + 4);
}

double SumSamples(const std::string& page, const std::string& sample) {
  const std::vector<std::string> wanted = SplitSample(sample);
  double sum = 0;
  bool found = false;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    if (space == std::string::npos || !Matches(wanted, SplitSample(line.substr(0, space))))
      continue;
    sum += std::strtod(line.c_str() + space, nullptr);
    found = true;
  }
  return found ? sum : -1;
}

}  // namespace augur::tests
