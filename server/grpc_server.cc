#include "server/grpc_server.h"

#include <grpc/compression.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "server/completion_service.h"
#include "server/connection_limit.h"
#include "server/host_port.h"
#include "server/local_sockets.h"

namespace augur::server {
namespace {

constexpr int kKeepaliveTimeMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// Clients that ping every 10 s through a long silent prefill are welcome; half of that leaves room
// for jitter.
constexpr int kMinPingIntervalMs = 5'000;
constexpr int kMaxPingStrikes = 2;
constexpr int kHandshakeTimeoutMs = 5'000;
constexpr int kMaxMetadataBytes = 16 << 10;
// Reflection is a synchronous service: each of its streams holds a thread.
constexpr int kMaxThreads = 8;
constexpr std::chrono::milliseconds kClosingPoll(5);

// Linking the reflection library turns it on for every builder of the process; this takes it out
// again.
class NoReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins,
                  [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

void SetLimits(const GrpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(kMaxResponseBytes));
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                              static_cast<int>(options.max_streams));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  // A small message that unpacks to a huge one would pass the size check.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  grpc::ResourceQuota quota("augurd");
  quota.SetMaxThreads(kMaxThreads);
  builder->SetResourceQuota(quota);
}

void SetKeepalive(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const GrpcServerOptions& options, const std::vector<grpc::Service*>& services) {
  const absl::StatusOr<HostPort> listen = ParseHostPort(options.listen);
  if (!listen.ok()) return listen.status();
  AUGUR_CHECK(GuardsAccept());
  grpc::EnableDefaultHealthCheckService(false);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!options.reflection) builder.SetOption(std::make_unique<NoReflection>());
  SetLimits(options, &builder);
  SetKeepalive(&builder);
  int port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot listen for gRPC on ", options.listen,
                     ": the port is in use or the address is not this machine's"));
  }
  return std::unique_ptr<GrpcServer>(
      new GrpcServer(std::move(server), port, FormatHostPort(listen->host, port)));
}

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, int port, std::string address)
    : server_(std::move(server)), port_(port), address_(std::move(address)) {}

GrpcServer::~GrpcServer() { Shutdown(0); }

void GrpcServer::Shutdown(int64_t grace_ns) {
  if (server_ == nullptr) return;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto end = now() + std::chrono::nanoseconds(grace_ns);
  StopListening(port_);
  do {  // a connection that was being accepted shows after a moment
    std::this_thread::sleep_for(kClosingPoll);
  } while (EndConnections(port_) > 0 && now() < end);
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

}  // namespace augur::server
