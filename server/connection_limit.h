// Keeps a listener alive where the process runs out of file descriptors.
//
// gRPC 1.51 takes a connection with accept4 and gives its listener up for good at the first error
// that is not EAGAIN: once with too many open files (grpc/grpc#20418), once with a connection that
// its client dropped while it waited (grpc/grpc#29308). So accept4 of this process is ours: what
// cannot be taken is closed, and the listener only ever sees EAGAIN.
//
// The soft limit on open files (ulimit -n, LimitNOFILE) bounds the connections; kReservedFiles of
// it stay free for scrapes and for whatever else the daemon opens. Thread: any.
#pragma once

#include <cstdint>

namespace augur::server {

inline constexpr int kReservedFiles = 32;

// Whether the libraries of this process call ours: false would be a mistake of linking.
bool GuardsAccept();

// Closed since the start of the process because the limit was reached.
uint64_t RefusedConnections();

}  // namespace augur::server
