#include "server/warm_up.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"

namespace augur::server {
namespace {

class FirstToken final : public engine::ResponseSink {
 public:
  void OnAccepted(uint32_t /*cached_tokens*/) override {}
  void OnProgress(const engine::PrefillProgress& /*progress*/) override {}
  void OnChunk(engine::TokenChunk /*chunk*/) override {}
  void OnFinished(const engine::Completion& completion) override {
    End(completion.completion_tokens == 1
            ? absl::OkStatus()
            : absl::InternalError(
                  absl::StrCat("expected 1 token, found ", completion.completion_tokens)));
  }
  void OnError(const absl::Status& status) override { End(status); }

  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return status_.has_value(); });
    return *status_;
  }

 private:
  void End(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    status_ = status;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<absl::Status> status_;
};

}  // namespace

absl::Status WarmUp(EngineEntry* engine, const memory::Clock& clock) {
  // shared: see engine/request.h
  const auto sink = std::make_shared<FirstToken>();
  const auto request = std::make_shared<engine::Request>();
  request->id = "warm-up";
  request->prompt = {0};
  request->sampling.temperature = 0;
  request->stopping.max_tokens = 1;
  request->stopping.ignore_eos = true;
  request->output.text = false;
  request->arrival_ns = clock.NowNs();
  request->sink = sink;
  absl::Status status = engine->Submit(request);
  return status.ok() ? sink->Wait() : status;
}

}  // namespace augur::server
