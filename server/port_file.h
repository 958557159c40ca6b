// The file that tells a script where a daemon with port 0 listens, and by its appearance that it is
// ready.
//
// Thread: plain functions.
// Failure: INVALID_ARGUMENT naming the file and the system's reason.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace augur::server {

// Removes what an earlier daemon left, so that nobody takes it for ready, and makes sure that a new
// one can be written there. Call it once the ports are ours: until then the file may be another
// daemon's.
absl::Status PreparePortFile(const std::string& path);

// Lines "grpc HOST:PORT" and "metrics HOST:PORT"; written aside and renamed, so a reader sees all
// or nothing.
absl::Status WritePortFile(const std::string& path, const std::string& grpc_address,
                           const std::string& metrics_address);

}  // namespace augur::server
