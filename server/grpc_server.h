// The gRPC server with the limits and keepalive rules of this daemon.
//
// Thread: Start and Shutdown from one thread; the handlers run on gRPC's own.
// Ownership: the services are the caller's and outlive the server.
// Failure: Start says ALREADY_EXISTS when it cannot listen, naming the address.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace augur::server {

struct GrpcServerOptions {
  std::string listen;                    // HOST:PORT; port 0: a free one
  int64_t max_receive_bytes = 64 << 20;  // of one message
  int64_t max_streams = 1024;            // calls at a time on one connection
  bool reflection = true;
};

class GrpcServer {
 public:
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const GrpcServerOptions& options, const std::vector<grpc::Service*>& services);
  // Shuts down at once when Shutdown was not called.
  ~GrpcServer();

  int port() const { return port_; }
  // HOST:PORT that a client on this machine connects to.
  const std::string& address() const { return address_; }

  // Takes no new connection and ends those that there are: what was written arrives (waits up to
  // `grace_ns` for that), and a call without a status, also one that comes now, sees UNAVAILABLE.
  // Returns when all calls are done.
  void Shutdown(int64_t grace_ns);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, int port, std::string address);

  std::unique_ptr<grpc::Server> server_;
  const int port_;
  const std::string address_;
};

}  // namespace augur::server
