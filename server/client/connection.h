// The way to a daemon: address, channel, deadline, and how a failed call is told.
//
// Thread: plain functions, one thread. Ownership: values. Failure: none here; a daemon that is not
// there shows as UNAVAILABLE of the first call. The environment is not read (no proxy, no default
// address).
#pragma once

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

namespace augur::client {

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";
// What a daemon accepts unless it is configured otherwise.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct ConnectionOptions {
  std::string server = kDefaultServer;
  double deadline_s = 0;  // of the whole call; 0: none
};

// Adds --server and --deadline to a subcommand; `options` outlives the parse and has the defaults.
void AddConnectionOptions(CLI::App* command, ConnectionOptions* options);

std::shared_ptr<grpc::Channel> Connect(const ConnectionOptions& options);

// Starts the clock of --deadline.
void SetDeadline(const ConnectionOptions& options, grpc::ClientContext* context);

// "DEADLINE_EXCEEDED", as the gRPC documentation spells it.
std::string StatusName(grpc::StatusCode code);

// One line on standard error: the status' name and message, control characters shown as escapes.
void PrintFailure(const ConnectionOptions& options, const grpc::Status& status);

}  // namespace augur::client
