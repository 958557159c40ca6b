#include "loadtest/load_runner.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loadtest/stage_run.h"

namespace augur::loadtest {
namespace {

// Of a slow reader's connection: small, so that the daemon feels the reader soon.
constexpr int kNarrowWindowBytes = 1024;

grpc::ChannelArguments Arguments(bool narrow) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A connection of its own, and no call that is quietly made twice.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  if (narrow) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kNarrowWindowBytes);
  }
  return arguments;
}

}  // namespace

LoadRunner::LoadRunner(RunnerOptions options) : options_(std::move(options)) {
  for (int i = 0; i <= options_.connections; ++i) {
    channels_.push_back(grpc::CreateCustomChannel(options_.address,
                                                  grpc::InsecureChannelCredentials(),
                                                  Arguments(i == options_.connections)));
    stubs_.push_back(v1::Completions::NewStub(channels_.back()));
  }
}

LoadRunner::~LoadRunner() = default;

absl::Status LoadRunner::Connect(double limit_s) {
  const auto limit = std::chrono::system_clock::now() +
                     std::chrono::milliseconds(static_cast<int64_t>(limit_s * 1000));
  for (const auto& channel : channels_) {
    if (!channel->WaitForConnected(limit)) {
      return absl::UnavailableError(
          absl::StrCat("--address: ", options_.address, ": no connection"));
    }
  }
  return absl::OkStatus();
}

StageResult LoadRunner::Run(const StagePlan& plan, const RequestSource& source) {
  StageRun run(plan, source, options_, stubs_);
  {
    const std::lock_guard lock(mutex_);
    running_ = &run;
    if (cancelled_) run.Cancel();
  }
  StageResult result = run.Run();
  const std::lock_guard lock(mutex_);
  running_ = nullptr;
  return result;
}

void LoadRunner::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (running_ != nullptr) running_->Cancel();
}

StageProgress LoadRunner::progress() const {
  const std::lock_guard lock(mutex_);
  return running_ != nullptr ? running_->progress() : StageProgress();
}

}  // namespace augur::loadtest
