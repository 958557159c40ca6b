// Where log lines go: standard error, one line each, by a thread of its own behind a bounded queue
// that drops its oldest lines, so that a full disk or a stuck pipe stops nobody.
//
// Thread: InitLogging and FlushLogging from main; spdlog's functions from any thread.
// Failure: lines are lost, never waited for (FlushLogging excepted, at exit).
#pragma once

#include <string>

namespace augur::server {

// `level` is one of debug, info, warn, error. Also takes over gRPC's own log, at debug.
void InitLogging(const std::string& level);

// Writes what is queued and stops the log's thread. False when that takes longer than a second (a
// full pipe that nobody reads): the thread is then left stuck, and only _Exit ends the process.
bool FlushLogging();

}  // namespace augur::server
