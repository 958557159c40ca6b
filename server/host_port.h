// HOST:PORT as flags and configuration spell it: "127.0.0.1:50051", "localhost:0", "[::1]:9464".
//
// Thread: plain functions.
// Failure: INVALID_ARGUMENT that says what was expected.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace augur::server {

struct HostPort {
  std::string host;  // with brackets where the text had them
  int port = 0;      // 0: the system picks a free one
};

// A missing host is refused: whom to listen to is said, not guessed.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

std::string FormatHostPort(const std::string& host, int port);

}  // namespace augur::server
