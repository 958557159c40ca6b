// Ports, message limits, reflection and shutdown of the gRPC server itself.

#include "server/grpc_server.h"

#include <arpa/inet.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "fake_engine.h"
#include "front_server.h"
#include "server/connection_limit.h"

namespace augur::server {
namespace {

TEST(GrpcServerTest, ASecondServerDoesNotShareThePort) {
  HealthService health;
  const auto first = GrpcServer::Start({.listen = "127.0.0.1:0"}, {&health});
  ASSERT_TRUE(first.ok());
  EXPECT_GT((*first)->port(), 0);
  HealthService other;
  const auto second = GrpcServer::Start({.listen = (*first)->address()}, {&other});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(std::string(second.status().message()).find((*first)->address()), std::string::npos);
}

TEST(GrpcServerTest, TakesLargeMessagesUpToTheLimit) {
  FakeEngine engine;
  const FrontServer server(&engine, {});
  v1::CompleteRequest request = TextRequest(std::string((64 << 20) - 16, 'x'));
  ASSERT_LE(request.ByteSizeLong(), 64u << 20);
  const Received fits = Complete(server.stub.get(), request);
  EXPECT_EQ(fits.status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);  // read, and too long for the context
  request.mutable_text()->append(16, 'x');
  EXPECT_EQ(Complete(server.stub.get(), request).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

grpc::StatusCode AskReflection(const std::string& address) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const grpc::Slice slice("\x3a\x00", 2);  // list_services
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  const grpc::internal::RpcMethod method(
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::internal::RpcMethod::NORMAL_RPC);
  return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
             channel.get(), method, &context, request, &response)
      .error_code();
}

TEST(GrpcServerTest, ReflectionCanBeClosed) {
  HealthService health;
  {
    const auto server = GrpcServer::Start({.listen = "127.0.0.1:0"}, {&health});
    EXPECT_NE(AskReflection((*server)->address()), grpc::StatusCode::UNIMPLEMENTED);
  }
  const auto closed = GrpcServer::Start({.listen = "127.0.0.1:0", .reflection = false}, {&health});
  EXPECT_EQ(AskReflection((*closed)->address()), grpc::StatusCode::UNIMPLEMENTED);
}

// Shutdown with streams that nobody ends: they are cancelled, and the sink still gets its say.
TEST(GrpcServerTest, ShutdownCancelsWhatIsLeft) {
  FakeEngine engine;
  FrontServer server(&engine, {});
  grpc::ClientContext context;
  const auto reader = server.stub->Complete(&context, TextRequest("abc"));
  const auto request = engine.Take();
  ASSERT_NE(request, nullptr);
  std::thread shutdown([&] { server.server().Shutdown(0); });
  EXPECT_TRUE(Eventually([&] { return request->cancelled.load(); }));
  request->sink->OnError(absl::UnavailableError("the server is shutting down"));
  shutdown.join();
  EXPECT_FALSE(ReadAll(reader.get()).status.ok());
  EXPECT_EQ(server.stats.open_streams, 0);
}

class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit now = {.rlim_cur = files, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &now);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

// Both ends are files of this process: the clients' ends come first, so that there are none left
// for the server's.
std::vector<int> ConnectMany(int count, int port) {
  std::vector<int> sockets(count);
  for (int& fd : sockets) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_GE(fd, 0);
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (const int fd : sockets) {
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  return sockets;
}

// gRPC's own listener is dead for good after one accept4 without a free file.
TEST(GrpcServerTest, ListensOnAfterTheFilesRanOut) {
  HealthService health;
  const auto server = GrpcServer::Start({.listen = "127.0.0.1:0", .reflection = false}, {&health});
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(AskReflection((*server)->address()), grpc::StatusCode::UNIMPLEMENTED);
  const uint64_t refused = RefusedConnections();
  {
    const FileLimit limit(256);
    const std::vector<int> sockets = ConnectMany(200, (*server)->port());
    EXPECT_TRUE(Eventually([&] { return RefusedConnections() > refused; }));
    for (const int fd : sockets) close(fd);
  }
  EXPECT_EQ(AskReflection((*server)->address()), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace augur::server
