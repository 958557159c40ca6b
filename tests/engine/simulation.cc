#include "tests/engine/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine_core.h"
#include "engine/pool_fit.h"
#include "tests/engine/simulation_world.h"
#include "tests/support/recording_runner.h"
#include "tests/support/simulated_transfers.h"
#include "tests/support/test_pools.h"

namespace augur::tests {
namespace {

using engine::Request;
using engine::TokenEvent;

constexpr int64_t kNsPerRow = 1000;
constexpr int kTenants = 3;
constexpr int kMostLive = 12;
constexpr int kChecksOneIn = 4;  // actions for one that is followed by a count of everything

// The sink is not used: events are read before any emitter.
class NoSink final : public engine::ResponseSink {
 public:
  void OnAccepted(uint32_t) override {}
  void OnProgress(const engine::PrefillProgress&) override {}
  void OnChunk(engine::TokenChunk) override {}
  void OnFinished(const engine::Completion&) override {}
  void OnError(const absl::Status&) override {}
};

struct Choice {
  RecordChain chain;  // prompt, then what arrived
  int32_t last_token = -1;
  bool ended = false;
};

struct Client {
  std::shared_ptr<Request> request;
  memory::SequenceId first_sequence = 0;  // of its choices
  std::vector<Choice> choices;
  uint32_t max_tokens = 0;
  bool failed = false;
  bool poisoned = false;
  uint32_t last_progress = 0;

  int num_prompt() const { return static_cast<int>(request->prompt.size()); }
  int num_generated(uint32_t choice) const { return choices[choice].chain.size() - num_prompt(); }
  bool ended() const {
    return std::all_of(choices.begin(), choices.end(), [](const Choice& one) { return one.ended; });
  }
};

class World final : public engine::TokenOutput {
 public:
  explicit World(uint64_t seed) : random_(seed), settings_(DrawSettings(&random_)) {
    const memory::KvLayout layout = RecordLayout(settings_.shape);
    pools_.emplace(layout, settings_.num_frames, settings_.num_host_blocks,
                   memory::StagingPages(layout, settings_.recording.limits));
    transfers_.emplace(settings_.transfers, seed, &clock_);
    kv_.emplace(pools_->pools(), &*transfers_, settings_.page_check);
    runner_.emplace(settings_.recording, &*kv_, &clock_, kNsPerRow);
    core_.emplace(settings_.options, std::vector<int32_t>{1}, &*runner_, &*kv_, this, &stats_,
                  &clock_);
    secret_.fill(static_cast<uint8_t>(seed));
    // Whole blocks too: a prompt that is cached to its last token must still compute one.
    for (int i = 0; i < 4; ++i) {
      stems_.push_back(RandomTokens(i % 2 == 0 ? 64 * Draw(1, 8) : Draw(1, 64 * 8)));
    }
  }

  SimulationResult Run(int64_t operations) {
    // A world in which nothing fits, or nothing moves, ends too: WindDown tells which.
    const int64_t most_actions = 2 * operations;
    for (int64_t i = 0; i < most_actions && Count() < operations && result_.fault.empty(); ++i) {
      Operate();
      if (random_.OneIn(kChecksOneIn)) Check();
      FindFaults();
    }
    if (result_.fault.empty()) WindDown();
    Count();
    result_.prefix_hits = static_cast<int64_t>(stats_.prefix_hit_blocks.load());
    result_.saved = static_cast<int64_t>(stats_.saved.load());
    if (!result_.fault.empty()) {
      absl::StrAppend(&result_.fault, " (operation ", result_.operations(), ")");
    }
    return result_;
  }

  void Post(std::vector<TokenEvent> events) override {
    for (const TokenEvent& event : events) Receive(event);
    for (const auto& [key, client] : clients_) {
      if (client.failed && !client.ended()) Fault("a choice outlives the failure of its request");
    }
  }

 private:
  int Draw(int low, int high) { return random_.Draw(low, high); }
  bool Chance(Trouble trouble, int percent) {
    return settings_.has(trouble) && Draw(1, 100) <= percent;
  }
  // Operations so far.
  int64_t Count() {
    result_.preemptions = static_cast<int64_t>(stats_.preemptions.load());
    result_.copies = transfers_->finished_copies();
    result_.group_plans = runner_->group_plans();
    return result_.operations();
  }
  void FindFaults() {
    if (!runner_->fault().empty()) Fault(runner_->fault());
    if (!transfers_->fault().empty()) Fault(transfers_->fault());
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
    if (dice <= 77) {
      DoStep();
    } else if (dice <= 87) {
      Arrive();
    } else if (Client* client = AnyLive(); client == nullptr) {
      clock_.Advance(Draw(0, 2000) * kNsPerRow);
    } else if (dice <= 89) {
      if (Chance(Trouble::kCancels, 40)) {
        client->request->cancelled = true;
        ++result_.cancels;
      } else if (Chance(Trouble::kStopMatches, 20)) {
        const uint32_t choice = AnyChoice(*client);
        if (client->num_generated(choice) > 0) {
          client->request->stop_matched |= uint64_t{1} << choice;
        }
      }
    } else if (dice <= 91) {
      if (settings_.has(Trouble::kSlowReaders)) client->request->paused = random_.OneIn(3);
    } else if (dice <= 93) {
      clock_.Advance(Draw(0, 2000) * kNsPerRow);
    } else if (dice <= 98) {
      if (Chance(Trouble::kPreemptions, 70)) Preempt(*client);
    } else if (dice == 99) {
      if (Chance(Trouble::kClearedCaches, 30)) kv_->ClearCache();
    } else if (Chance(Trouble::kDrains, 10)) {
      Drain();
    }
  }

  uint32_t AnyChoice(const Client& client) {
    return static_cast<uint32_t>(Draw(0, static_cast<int>(client.choices.size()) - 1));
  }

  void Preempt(const Client& client) {
    const memory::SequenceId id = client.first_sequence + AnyChoice(client);
    if (kv_->is_open(id)) core_->Preempt(id);
  }

  void Drain() {
    const absl::Status status = absl::UnavailableError("drain");
    ends_all_ = random_.OneIn(2);
    if (ends_all_) {
      core_->EndAll(status);
    } else {
      core_->EndQueued(status);
    }
    ends_all_ = false;
  }

  Client* AnyLive() {
    std::vector<Client*> live;
    for (auto& [key, client] : clients_) {
      if (!client.ended()) live.push_back(&client);
    }
    return live.empty() ? nullptr : live[Draw(0, static_cast<int>(live.size()) - 1)];
  }

  void Arrive() {
    if (live_ >= kMostLive) return;
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
    request->stopping.max_tokens = random_.OneIn(3) ? Draw(1, 20) : Draw(1, 300);
    request->sampling.seed = static_cast<uint64_t>(Draw(0, kTenants - 1));
    request->attention =
        settings_.policies[Draw(0, static_cast<int>(settings_.policies.size()) - 1)];
    request->output.progress = Draw(0, 1) == 1;
    request->num_choices = static_cast<uint32_t>(Draw(1, settings_.most_choices));
    request->priority = Draw(-settings_.most_priority, settings_.most_priority);
    request->arrival_ns = clock_.NowNs();
    if (Chance(Trouble::kDeadlines, 40))
      request->deadline_ns = clock_.NowNs() + Draw(0, 20000) * kNsPerRow;
    const bool poisoned = Chance(Trouble::kPoisonedRows, 10);
    if (poisoned) request->prompt.back() = kPoison;
    if (Draw(0, 4) > 0) {
      request->block_keys =
          memory::MakeBlockKeys(secret_, request->attention.Fingerprint(),
                                absl::StrCat("tenant", request->sampling.seed), request->prompt);
    }
    request->sink = sink_;
    if (!engine::CheckFits(*request, settings_.options, kv_->pools()).ok()) return;
    RecordChain chain(request->sampling.seed, request->attention);
    for (const int32_t token : request->prompt) chain.Append(token);
    Client client{.request = request,
                  .first_sequence = next_sequence_,
                  .choices = {request->num_choices, Choice{.chain = chain}},
                  .max_tokens = request->stopping.max_tokens,
                  .failed = false,
                  .poisoned = poisoned,
                  .last_progress = 0};
    // The core numbers choices in order of arrival.
    for (uint32_t i = 0; i < request->num_choices; ++i) {
      ranks_[next_sequence_++] = request->priority;
    }
    ++result_.requests;
    live_ += static_cast<int>(request->num_choices);
    arrivals_.emplace(request.get(), next_arrival_);
    clients_.emplace(next_arrival_++, std::move(client));
    core_->Add(std::move(request));
  }

  void DoStep() {
    const engine::StepReport report = core_->Step();
    if (report.awaits_copies) core_->WaitForCopies();
    ++result_.steps;
    const engine::BatchPlan& plan = core_->last_plan();
    result_.segments += static_cast<int64_t>(plan.segments.size());
    result_.admissions += static_cast<int64_t>(plan.admissions.size());
    if (report.rows != plan.num_rows()) Fault("a planned row was not run");
    if (report.rows > settings_.options.max_batched_tokens) Fault("more rows than the budget");
    // The first in rank of those that run is never a victim: victims come last in rank first and
    // one always stays.
    for (size_t i = 1; i < plan.preemptions.size(); ++i) {
      if (RanksBefore(plan.preemptions[i - 1], plan.preemptions[i])) {
        Fault("victims not last in rank first");
      }
    }
    if (!plan.preemptions.empty()) {
      for (const auto& [id, priority] : ranks_) {
        if (kv_->is_open(id) && RanksBefore(plan.preemptions.front(), id)) {
          Fault("the victim is not the last in rank");
        }
      }
      if (!plan.admissions.empty()) Fault("admitted in a step that preempts");
      if (plan.segments.empty() && kv_->num_open() == 0) Fault("preempted the oldest sequence");
    }
    ForgetEnded();
  }

  bool RanksBefore(memory::SequenceId a, memory::SequenceId b) const {
    return ranks_.at(a) != ranks_.at(b) ? ranks_.at(a) > ranks_.at(b) : a < b;
  }

  // Ended requests are kept until the step after, so that a late event is noticed.
  void ForgetEnded() {
    for (auto it = clients_.begin(); it != clients_.end();) {
      if (!it->second.ended()) {
        ++it;
        continue;
      }
      const memory::SequenceId first = it->second.first_sequence;
      ranks_.erase(ranks_.find(first), ranks_.lower_bound(first + it->second.choices.size()));
      arrivals_.erase(it->second.request.get());
      it = clients_.erase(it);
    }
  }

  void Receive(const TokenEvent& event) {
    const auto arrival = arrivals_.find(event.request.get());
    if (arrival == arrivals_.end()) return Fault("an event after the terminal one");
    Client& client = clients_.at(arrival->second);
    Choice& choice = client.choices.at(event.choice);
    if (choice.ended) return Fault("an event after the terminal one");
    switch (event.kind) {
      case TokenEvent::Kind::kProgress:
        if (event.progress.processed_tokens <= client.last_progress) Fault("progress did not move");
        if (event.progress.processed_tokens > client.request->prompt.size())
          Fault("progress too far");
        client.last_progress = event.progress.processed_tokens;
        return;
      case TokenEvent::Kind::kPrompt:
        Fault("a prompt that nobody asked for");
        return;
      case TokenEvent::Kind::kToken: {
        const int32_t expected = NextToken(choice.chain, settings_.shape, client.request->attention,
                                           client.num_prompt(), event.choice);
        if (event.token != expected) Fault("transcript differs from a run alone");
        choice.chain.Append(event.token);
        choice.last_token = event.token;
        return;
      }
      case TokenEvent::Kind::kFinished: {
        const uint32_t generated = static_cast<uint32_t>(client.num_generated(event.choice));
        if (event.completion.completion_tokens != generated) Fault("wrong token count");
        const bool eos = choice.last_token == 1;
        if (event.completion.index != event.choice) Fault("another choice's completion");
        if (!eos && generated != client.max_tokens) Fault("finished early");
        break;
      }
      case TokenEvent::Kind::kFailed:
        CheckFailure(event, client);
        client.failed = true;
        break;
      case TokenEvent::Kind::kRetired:
        if ((client.request->stop_matched >> event.choice & 1) == 0) {
          Fault("retired without a stop match");
        }
        break;
    }
    choice.ended = true;
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
        if (client.num_generated(event.choice) > 0 && !ends_all_) {
          Fault("a drain ended a running stream");
        }
        return;
      default:
        Fault(absl::StrCat("unexpected status ", event.status.ToString()));
    }
  }

  void Check() {
    core_->CheckInvariants();
    const memory::KvCounts frames = kv_->frame_counts(), host = kv_->host_counts();
    if (frames.held + frames.cached + frames.free != settings_.num_frames) {
      Fault("frames do not add up");
    }
    if (host.held + host.cached + host.free != settings_.num_host_blocks) {
      Fault("host blocks do not add up");
    }
    if (kv_->num_open() + kv_->num_saved() > live_) Fault("KV of a request that has ended");
  }

  // No new work and no trouble: everything must end within a bounded number of steps and leave
  // every block.
  void WindDown() {
    int64_t rows = 0;
    for (auto& [key, client] : clients_) {
      client.request->paused = false;
      for (const Choice& choice : client.choices) {
        if (!choice.ended) rows += choice.chain.size() + client.max_tokens;
      }
    }
    // Each preemption may recompute a whole context; the batcher's rules keep them few.
    const int64_t most = 1000 + 20 * rows;
    for (int64_t step = 0; !core_->idle() && result_.fault.empty(); ++step) {
      if (step > most) return Fault("no end in sight: livelock");
      DoStep();
      if (random_.OneIn(kChecksOneIn)) Check();
      FindFaults();
    }
    if (!result_.fault.empty()) return;
    Check();
    if (live_ != 0) Fault("a request has no end");
    if (kv_->frame_counts().held != 0) Fault("frames leaked");
    if (kv_->host_counts().held != 0) Fault("host blocks leaked");
    if (kv_->num_open() + kv_->num_saved() + kv_->num_closing() != 0) Fault("a sequence leaked");
  }

  SimulationRandom random_;
  const WorldSettings settings_;
  memory::BlockKeySecret secret_{};
  memory::FakeClock clock_;
  engine::EngineStats stats_;
  std::shared_ptr<NoSink> sink_ = std::make_shared<NoSink>();
  std::vector<std::vector<int32_t>> stems_;
  std::map<uint64_t, Client> clients_;  // by arrival
  std::map<const Request*, uint64_t> arrivals_;
  std::map<memory::SequenceId, int> ranks_;  // priorities of those that have not ended
  uint64_t next_arrival_ = 0;
  memory::SequenceId next_sequence_ = 1;
  int live_ = 0;           // choices
  bool ends_all_ = false;  // a drain that ends running streams is under way
  SimulationResult result_;
  std::optional<TestPools> pools_;
  std::optional<SimulatedTransfers> transfers_;
  std::optional<memory::KvStore> kv_;
  std::optional<RecordingRunner> runner_;
  std::optional<engine::EngineCore> core_;
};

}  // namespace

void SimulationResult::Add(const SimulationResult& other) {
  steps += other.steps;
  requests += other.requests;
  prefix_hits += other.prefix_hits;
  saved += other.saved;
  segments += other.segments;
  admissions += other.admissions;
  preemptions += other.preemptions;
  cancels += other.cancels;
  copies += other.copies;
  group_plans += other.group_plans;
  if (fault.empty()) fault = other.fault;
}

SimulationResult RunSimulation(uint64_t seed, int64_t operations) {
  return World(seed).Run(operations);
}

}  // namespace augur::tests
