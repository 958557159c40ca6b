// Check and Watch over the wire, and watchers at the end of a server.

#include "server/health_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "eventually.h"
#include "server/grpc_server.h"
#include "server/liveness_watchdog.h"

namespace augur::server {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthServiceTest : public testing::Test {
 protected:
  HealthServiceTest() {
    auto server = GrpcServer::Start({.listen = "127.0.0.1:0"}, {&health_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = Health::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  HealthCheckResponse::ServingStatus Check(const std::string& name) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND)
      return HealthCheckResponse::SERVICE_UNKNOWN;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> Watch(grpc::ClientContext* context,
                                                                 const std::string& name) {
    HealthCheckRequest request;
    request.set_service(name);
    return stub_->Watch(context, request);
  }

  HealthService health_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthServiceTest, ChecksEachNameOnItsOwn) {
  health_.Set("", false);
  health_.Set(kServiceName, true);
  health_.Set(kLiveName, true);
  EXPECT_EQ(Check(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(kServiceName), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("live"), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("augur.v1.Nothing"), HealthCheckResponse::SERVICE_UNKNOWN);
}

TEST_F(HealthServiceTest, WatchersSeeEveryChange) {
  health_.Set(kServiceName, false);
  grpc::ClientContext context;
  const auto reader = Watch(&context, kServiceName);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  for (int i = 0; i < 30; ++i) health_.Set(kServiceName, i % 2 == 0);  // faster than anyone reads
  health_.Set("other", true);
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.status(),
              i % 2 == 0 ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
  }
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthServiceTest, AnUnknownNameIsWatchedUntilItExists) {
  grpc::ClientContext context;
  const auto reader = Watch(&context, "later");
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  health_.Set("later", true);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  context.TryCancel();
  reader->Finish();
}

TEST_F(HealthServiceTest, WatchersEndWithTheServer) {
  health_.Set(kServiceName, true);
  grpc::ClientContext contexts[8];
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> readers;
  HealthCheckResponse response;
  for (grpc::ClientContext& context : contexts) {
    readers.push_back(Watch(&context, kServiceName));
    ASSERT_TRUE(readers.back()->Read(&response));
  }
  health_.Shutdown();
  health_.Set(kServiceName, true);  // too late
  for (const auto& reader : readers) {
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(Check(kServiceName), HealthCheckResponse::NOT_SERVING);
  const auto before = std::chrono::steady_clock::now();
  server_->Shutdown(int64_t{60} * 1'000'000'000);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
}

TEST_F(HealthServiceTest, AWatcherThatDoesNotReadHoldsNothingUp) {
  health_.Set(kServiceName, true);
  grpc::ClientContext context;
  const auto reader = Watch(&context, kServiceName);
  for (int i = 0; i < 10'000; ++i) health_.Set(kServiceName, i % 2 == 0);
  health_.Shutdown();
  server_->Shutdown(100'000'000);
  HealthCheckResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(HealthServiceTest, ManyWatchersComeAndGo) {
  health_.Set(kServiceName, true);
  std::atomic<bool> stop{false};
  std::thread changes([&] {
    for (int i = 0; !stop; ++i) health_.Set(kServiceName, i % 2 == 0);
  });
  for (int i = 0; i < 300; ++i) {
    grpc::ClientContext context;
    const auto reader = Watch(&context, kServiceName);
    HealthCheckResponse response;
    EXPECT_TRUE(reader->Read(&response));
    context.TryCancel();
    reader->Finish();
  }
  stop = true;
  changes.join();
}

TEST_F(HealthServiceTest, LivenessFollowsTheEngine) {
  health_.Set(kLiveName, true);
  std::atomic<int64_t> stalled_ns{0};
  const LivenessWatchdog watchdog([&] { return stalled_ns.load(); }, 1'000, 1'000'000, &health_);
  EXPECT_EQ(Check(kLiveName), HealthCheckResponse::SERVING);
  stalled_ns = 2'000;
  EXPECT_TRUE(Eventually([&] { return Check(kLiveName) == HealthCheckResponse::NOT_SERVING; }));
  stalled_ns = 0;
  EXPECT_TRUE(Eventually([&] { return Check(kLiveName) == HealthCheckResponse::SERVING; }));
}

}  // namespace
}  // namespace augur::server
