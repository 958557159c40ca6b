// The TCP sockets of this process that are bound to a local port, found in /proc: gRPC neither
// tells its sockets nor lets a server close a connection without closing the server.
//
// Thread: any. Ownership: the sockets stay their owner's, which sees an end of file.
// Failure: without /proc nothing is found.
#pragma once

namespace augur::server {

// Sockets that listen on `port` take no connection any more: the next is refused by the kernel.
void StopListening(int port);
// Connections to `port`: what was written still arrives, then the peer sees the end; nothing can be
// written any more. Returns how many peers have not acknowledged all of it yet.
int EndConnections(int port);

}  // namespace augur::server
