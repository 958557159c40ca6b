// Ports, message limits, reflection and shutdown of the gRPC server itself.

#include "server/grpc_server.h"

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "fake_engine.h"
#include "front_server.h"

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

}  // namespace
}  // namespace augur::server
