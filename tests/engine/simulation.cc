#include "tests/engine/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_core.h"
#include "tests/support/recording_runner.h"

namespace augur::tests {
namespace {

using engine::Request;
using engine::TokenEvent;

constexpr int64_t kNsPerRow = 1000;
constexpr int kTenants = 3;

// The sink is not used: events are read before any emitter.
class NoSink final : public engine::ResponseSink {
 public:
  void OnAccepted(uint32_t) override {}
  void OnProgress(const engine::PrefillProgress&) override {}
  void OnChunk(engine::TokenChunk) override {}
  void OnFinished(const engine::Completion&) override {}
  void OnError(const absl::Status&) override {}
};

struct Client {
  std::shared_ptr<Request> request;
  std::vector<int32_t> transcript;  // prompt, then what arrived
  uint32_t max_tokens = 0;
  bool ended = false;
  bool poisoned = false;
  uint32_t last_progress = 0;
};

class World final : public engine::TokenOutput {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    options_.num_blocks = Draw(0, 4) == 0 ? Draw(20, 60) : Draw(4, 20);
    options_.max_batch = Draw(1, 8);
    options_.max_batched_tokens = options_.max_batch + 64 + Draw(0, 200);
    options_.max_context = 64 * Draw(2, 20);
    options_.slow_reader_timeout_ns = Draw(1, 50) * 1000 * kNsPerRow;
    secret_.fill(static_cast<uint8_t>(seed));
    // Half of the kinds of trouble are off in any one world, so that each also meets quiet
    // neighbours.
    for (bool& on : features_) on = Draw(0, 1) == 1;
    runner_ = std::make_unique<RecordingRunner>(options_.num_blocks, &clock_, kNsPerRow);
    core_ = std::make_unique<engine::EngineCore>(options_, std::vector<int32_t>{1}, runner_.get(),
                                                 this, &stats_, &clock_);
    // Whole blocks too: a prompt that is cached to its last token must still compute one.
    for (int i = 0; i < 4; ++i) {
      stems_.push_back(RandomTokens(i % 2 == 0 ? 64 * Draw(1, 5) : Draw(1, 64 * 6)));
    }
  }

  SimulationResult Run(int64_t operations) {
    while (result_.operations < operations && result_.fault.empty()) {
      Operate();
      ++result_.operations;
      if (result_.fault.empty()) Check();
    }
    if (result_.fault.empty()) WindDown();
    result_.preemptions = static_cast<int64_t>(stats_.preemptions.load());
    result_.prefix_hits = static_cast<int64_t>(stats_.prefix_hit_blocks.load());
    if (!result_.fault.empty())
      absl::StrAppend(&result_.fault, " (operation ", result_.operations, ")");
    return result_;
  }

  void Post(std::vector<TokenEvent> events) override {
    for (const TokenEvent& event : events) Receive(event);
  }

 private:
  enum Feature { kCancels, kDeadlines, kSlowReaders, kStopMatches, kPoison, kDrains, kNumFeatures };

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(Feature feature, int percent) {
    return features_[feature] && Draw(1, 100) <= percent;
  }
  void Fault(const std::string& what) {
    if (result_.fault.empty()) result_.fault = what;
  }

  std::vector<int32_t> RandomTokens(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(Draw(2, 900));
    return tokens;
  }

  void Operate() {
    const int dice = Draw(1, 100);
    if (dice <= 70) {
      DoStep();
    } else if (dice <= 88) {
      Arrive();
    } else if (Client* client = AnyLive(); client == nullptr) {
      clock_.Advance(Draw(0, 2000) * kNsPerRow);
    } else if (dice <= 91 && Chance(kCancels, 60)) {
      client->request->cancelled = true;
    } else if (dice <= 95 && features_[kSlowReaders]) {
      client->request->paused = Draw(0, 2) == 0;
    } else if (dice <= 97) {
      clock_.Advance(Draw(0, 2000) * kNsPerRow);
    } else if (Chance(kStopMatches, 50) &&
               client->transcript.size() > client->request->prompt.size()) {
      client->request->stop_matched = true;
    } else if (Chance(kDrains, 5)) {
      core_->EndQueued(absl::UnavailableError("drain"));
    }
  }

  Client* AnyLive() {
    std::vector<Client*> live;
    for (auto& [key, client] : clients_) {
      if (!client.ended) live.push_back(&client);
    }
    return live.empty() ? nullptr : live[Draw(0, static_cast<int>(live.size()) - 1)];
  }

  void Arrive() {
    if (live_ >= 12) return;
    auto request = std::make_shared<Request>();
    const std::vector<int32_t>& stem = stems_[Draw(0, 3)];
    // Lengths at, before and behind block edges, with and without a shared beginning.
    const int whole = static_cast<int>(stem.size());
    const int kept = Draw(0, 3) == 0 ? 0 : Draw(0, 1) == 0 ? whole : Draw(1, whole);
    request->prompt.assign(stem.begin(), stem.begin() + kept);
    const int dice = Draw(0, 7);
    const int own = dice <= 1 ? (64 - kept % 64) + Draw(-1, 1) : dice == 2 ? 0 : Draw(0, 150);
    for (const int32_t token : RandomTokens(std::max(kept == 0 ? 1 : 0, own))) {
      request->prompt.push_back(token);
    }
    request->stopping.max_tokens = Draw(0, 2) == 0 ? Draw(1, 20) : Draw(1, 500);
    request->sampling.seed = static_cast<uint64_t>(Draw(0, kTenants - 1));
    request->output.progress = Draw(0, 1) == 1;
    request->arrival_ns = clock_.NowNs();
    if (Chance(kDeadlines, 40)) request->deadline_ns = clock_.NowNs() + Draw(0, 20000) * kNsPerRow;
    const bool poisoned = Chance(kPoison, 10);
    if (poisoned) request->prompt.back() = RecordingRunner::kPoison;
    if (Draw(0, 4) > 0) {
      request->block_keys = memory::MakeBlockKeys(
          secret_, "sim", absl::StrCat("tenant", request->sampling.seed), request->prompt);
    }
    request->sink = sink_;
    if (!engine::CheckFits(*request, options_).ok()) return;
    Client client{.request = request,
                  .transcript = request->prompt,
                  .max_tokens = request->stopping.max_tokens,
                  .ended = false,
                  .poisoned = poisoned,
                  .last_progress = 0};
    ++result_.requests;
    ++live_;
    clients_.emplace(request.get(), std::move(client));
    core_->Add(std::move(request));
  }

  void DoStep() {
    const engine::StepReport report = core_->Step();
    ++result_.steps;
    const engine::BatchPlan& plan = core_->last_plan();
    if (report.rows != plan.num_rows()) Fault("a planned row was not run");
    if (report.rows > options_.max_batched_tokens) Fault("more rows than the budget");
    // The oldest running sequence is never a victim: victims come youngest first and one always
    // stays.
    for (size_t i = 1; i < plan.preemptions.size(); ++i) {
      if (plan.preemptions[i] > plan.preemptions[i - 1]) Fault("victims not youngest first");
    }
    if (!plan.preemptions.empty()) {
      if (!plan.admissions.empty()) Fault("admitted in a step that preempts");
      if (plan.segments.empty() && core_->kv().num_tables() == 0)
        Fault("preempted the oldest sequence");
      recent_preemptions_ += static_cast<int64_t>(plan.preemptions.size());
    }
    ForgetEnded();
  }

  // Ended requests are kept until the step after, so that a late event is noticed.
  void ForgetEnded() {
    for (auto it = clients_.begin(); it != clients_.end();) {
      it = it->second.ended ? clients_.erase(it) : std::next(it);
    }
  }

  void Receive(const TokenEvent& event) {
    const auto found = clients_.find(event.request.get());
    if (found == clients_.end() || found->second.ended)
      return Fault("an event after the terminal one");
    Client& client = found->second;
    switch (event.kind) {
      case TokenEvent::Kind::kProgress:
        if (event.progress.processed_tokens <= client.last_progress) Fault("progress did not move");
        if (event.progress.processed_tokens > client.request->prompt.size())
          Fault("progress too far");
        client.last_progress = event.progress.processed_tokens;
        return;
      case TokenEvent::Kind::kToken: {
        const int32_t expected =
            RecordingRunner::ReferenceToken(client.request->sampling.seed, client.transcript);
        if (event.token != expected) Fault("transcript differs from a run alone");
        client.transcript.push_back(event.token);
        return;
      }
      case TokenEvent::Kind::kFinished: {
        const size_t generated = client.transcript.size() - client.request->prompt.size();
        if (event.completion.completion_tokens != generated) Fault("wrong token count");
        const bool eos = client.transcript.back() == 1;
        if (!eos && generated != client.max_tokens) Fault("finished early");
        break;
      }
      case TokenEvent::Kind::kFailed:
        CheckFailure(event, client);
        break;
      case TokenEvent::Kind::kRetired:
        if (!client.request->stop_matched) Fault("retired without a stop match");
        break;
    }
    client.ended = true;
    --live_;
  }

  void CheckFailure(const TokenEvent& event, const Client& client) {
    switch (event.status.code()) {
      case absl::StatusCode::kCancelled:
        if (!client.request->cancelled) Fault("cancelled without a cancel");
        return;
      case absl::StatusCode::kDeadlineExceeded:
        if (clock_.NowNs() < client.request->deadline_ns) Fault("deadline before its time");
        return;
      case absl::StatusCode::kResourceExhausted:
        if (!client.request->paused) Fault("a reader that reads was cut off");
        return;
      case absl::StatusCode::kInternal:
        if (!client.poisoned) Fault("a healthy row failed");
        return;
      case absl::StatusCode::kUnavailable:
        if (client.transcript.size() > client.request->prompt.size())
          Fault("a drain ended a running stream");
        return;
      default:
        Fault(absl::StrCat("unexpected status ", event.status.ToString()));
    }
  }

  void Check() {
    core_->CheckInvariants();
    const memory::KvCounts counts = core_->kv().counts();
    if (counts.held + counts.cached + counts.free != options_.num_blocks)
      Fault("blocks do not add up");
  }

  // No new work and no trouble: everything must end within a bounded number of steps and leave
  // every block.
  void WindDown() {
    int64_t rows = 0;
    for (auto& [key, client] : clients_) {
      client.request->paused = false;
      if (!client.ended) rows += static_cast<int64_t>(client.transcript.size()) + client.max_tokens;
    }
    // Each preemption may recompute a whole context; the batcher's rules keep them few.
    const int64_t most = 1000 + 20 * rows;
    for (int64_t step = 0; !core_->idle() && result_.fault.empty(); ++step) {
      if (step > most) return Fault("no end in sight: livelock");
      DoStep();
      Check();
    }
    if (!result_.fault.empty()) return;
    if (live_ != 0) Fault("a request has no end");
    if (core_->kv().counts().held != 0) Fault("blocks leaked");
  }

  std::mt19937_64 random_;
  engine::EngineOptions options_;
  memory::BlockKeySecret secret_{};
  bool features_[kNumFeatures] = {};
  memory::FakeClock clock_;
  engine::EngineStats stats_;
  std::shared_ptr<NoSink> sink_ = std::make_shared<NoSink>();
  std::vector<std::vector<int32_t>> stems_;
  std::map<const Request*, Client> clients_;
  int live_ = 0;
  int64_t recent_preemptions_ = 0;
  SimulationResult result_;
  std::unique_ptr<RecordingRunner> runner_;
  std::unique_ptr<engine::EngineCore> core_;
};

}  // namespace

SimulationResult RunSimulation(uint64_t seed, int64_t operations) {
  return World(seed).Run(operations);
}

}  // namespace augur::tests
