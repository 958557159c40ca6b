#include "server/host_port.h"

#include <charconv>

#include "absl/strings/str_cat.h"

namespace augur::server {

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected HOST:PORT with a port from 0 to 65535, e.g. 127.0.0.1:50051, found \"", text,
        "\""));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || text.size() > 256) return refuse();
  HostPort result;
  result.host = text.substr(0, colon);
  const bool bracketed = result.host.front() == '[' && result.host.back() == ']';
  // An IPv6 address without brackets cannot be told from its port.
  if (!bracketed && result.host.find(':') != std::string::npos) return refuse();
  if (result.host.find_first_of(" \t\r\n,/") != std::string::npos) return refuse();
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, result.port);
  if (error != std::errc() || stop != end || result.port < 0 || result.port > 65535)
    return refuse();
  return result;
}

std::string FormatHostPort(const std::string& host, int port) {
  return absl::StrCat(host, ":", port);
}

}  // namespace augur::server
