// A cold sequence is warmed beside the steps of others: in virtual time, with copies that take
// theirs, a step of the others takes as long as it does without.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "engine/engine_core.h"
#include "tests/support/recording_runner.h"
#include "tests/support/simulated_transfers.h"
#include "tests/support/test_pools.h"

namespace augur::engine {
namespace {

constexpr int64_t kNsPerRow = 10'000;
constexpr int kLongBlocks = 24;

class WarmUpTest : public testing::Test, public TokenOutput {
 protected:
  // A row takes 10 us, a copy 0.5 to 1; what is cold takes some 500 of them.
  void SetUp() override {
    options_.residency = ResidencyMode::kTiered;
    options_.num_slots = 8;
    options_.max_batch = 4;
    options_.max_batched_tokens = 4 + 64 * kLongBlocks;
    options_.max_context = 64 * 40;
    options_.warm_up_bytes = 4096;
    const memory::KvLayout layout = tests::RecordLayout(shape_);
    const memory::ResidencyLimits limits{.max_rows = options_.max_batched_tokens,
                                         .max_segments = options_.max_batch,
                                         .fetch_blocks = kLongBlocks};
    pools_.emplace(layout, 400, 200, memory::StagingPages(layout, limits));
    transfers_.emplace(
        tests::SimulatedTransfersOptions{.units = 1, .queue_copies = 20'000, .copy_ns = 500}, 1,
        &clock_);
    kv_.emplace(pools_->pools(), &*transfers_);
    runner_.emplace(tests::RecordingOptions{.limits = limits, .max_top_k = 8}, &*kv_, &clock_,
                    kNsPerRow);
    core_.emplace(options_, std::vector<int32_t>{}, &*runner_, &*kv_, this, &stats_, &clock_);
  }

  void Post(std::vector<TokenEvent> events) override {
    for (const TokenEvent& event : events) {
      if (event.kind == TokenEvent::Kind::kToken)
        tokens_[event.request.get()].push_back(event.token);
    }
  }

  // Sequences have ids 1, 2, ... in order. Keys: its full blocks may come from the prefix cache.
  std::shared_ptr<Request> Add(int prompt_tokens, uint64_t tenant, bool keys = false) {
    auto request = std::make_shared<Request>();
    for (int i = 0; i < prompt_tokens; ++i) request->prompt.push_back(2 + (i * 7) % 900);
    request->stopping.max_tokens = 200;
    request->sampling.seed = tenant;
    request->attention = {.prefill = AttentionPolicy::kSparse,
                          .decode = AttentionPolicy::kForecast,
                          .budget = {.top_k = 8, .init = 1, .local = 2}};
    for (int i = 0; keys && i < prompt_tokens / 64; ++i) {
      request->block_keys.push_back({tenant, static_cast<uint64_t>(i)});
    }
    core_->Add(request);
    return request;
  }

  // One step; how long it took.
  int64_t Step() {
    const int64_t start_ns = clock_.NowNs();
    const StepReport report = core_->Step();
    if (report.awaits_copies) core_->WaitForCopies();
    return clock_.NowNs() - start_ns;
  }
  bool Steps(memory::SequenceId id) const {
    const std::vector<PlannedSegment>& segments = core_->last_plan().segments;
    return std::any_of(segments.begin(), segments.end(),
                       [&](const PlannedSegment& one) { return one.sequence == id; });
  }

  // Two short sequences whose blocks all lie in slots, a token behind a block's edge: their steps
  // write, fetch and wait for nothing.
  void StartWarmOnes() {
    for (uint64_t tenant : {1, 2}) warm_.push_back(Add(64 * 2 + 1, tenant));
    for (int i = 0; i < 3; ++i) Step();
    clock_.Advance(memory::kNsPerSecond);
    Step();
    ASSERT_TRUE(transfers_->quiet());
  }

  // Steps until `id` takes a row; no step before takes longer than those of the warm ones alone.
  int StepUntilItJoins(memory::SequenceId id) {
    const int64_t alone_ns = 2 * kNsPerRow / shape_.num_layers * shape_.num_layers;
    int steps = 0;
    int64_t most_bytes = 0;
    while (true) {
      const int64_t took_ns = Step();
      if (Steps(id)) break;
      EXPECT_EQ(took_ns, alone_ns) << "step " << steps;
      EXPECT_EQ(core_->last_plan().segments.size(), 2u);
      if (kv_->is_open(id)) most_bytes = std::max(most_bytes, kv_->BytesOnTheirWay(id));
      if (++steps > 60 || HasFailure()) break;
    }
    EXPECT_GT(most_bytes, 0);
    EXPECT_LE(most_bytes, options_.warm_up_bytes + LargestPiece());
    return steps;
  }
  int64_t LargestPiece() const {
    const memory::KvLayout& layout = kv_->pools().layout;
    return static_cast<int64_t>(options_.num_slots * layout.host_page_bytes() * 2);
  }

  void ExpectTheTokensOfRunsAlone(const std::vector<std::shared_ptr<Request>>& requests) {
    for (int i = 0; i < 20; ++i) Step();
    for (const std::shared_ptr<Request>& request : requests) {
      const std::vector<int32_t>& found = tokens_[request.get()];
      EXPECT_EQ(found, tests::ReferenceTokens(shape_, request->sampling.seed, request->attention,
                                              request->prompt, static_cast<int>(found.size())));
      EXPECT_GT(found.size(), 20u);
    }
    EXPECT_EQ(runner_->fault(), "");
    EXPECT_EQ(transfers_->fault(), "");
  }

  const tests::RecordShape shape_{.num_layers = 4, .num_kv_heads = 2};
  EngineOptions options_;
  memory::FakeClock clock_;
  EngineStats stats_;
  std::map<const Request*, std::vector<int32_t>> tokens_;
  std::vector<std::shared_ptr<Request>> warm_;
  std::optional<tests::TestPools> pools_;
  std::optional<tests::SimulatedTransfers> transfers_;
  std::optional<memory::KvStore> kv_;
  std::optional<tests::RecordingRunner> runner_;
  std::optional<EngineCore> core_;
};

TEST_F(WarmUpTest, NobodyWaitsForAResumedSequence) {
  const std::shared_ptr<Request> cold = Add(64 * kLongBlocks - 20, 7);
  for (int i = 0; i < 4; ++i) Step();
  StartWarmOnes();
  core_->Preempt(1);
  EXPECT_GT(StepUntilItJoins(1), 5);
  const std::vector<uint64_t> counts = stats_.warm_up_seconds.Snapshot().counts;
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), uint64_t{0}), 1u);
  EXPECT_EQ(stats_.warming.load(), 0);
  ExpectTheTokensOfRunsAlone({cold, warm_[0], warm_[1]});
}

TEST_F(WarmUpTest, NobodyWaitsForAPrefixHit) {
  const std::shared_ptr<Request> donor = Add(64 * kLongBlocks, 7, /*keys=*/true);
  for (int i = 0; i < 4; ++i) Step();
  clock_.Advance(memory::kNsPerSecond);
  Step();
  donor->cancelled = true;
  Step();
  StartWarmOnes();
  const std::shared_ptr<Request> hit = Add(64 * kLongBlocks, 7, /*keys=*/true);
  EXPECT_GT(StepUntilItJoins(4), 5);
  EXPECT_GE(stats_.prefix_hit_blocks.load(), static_cast<uint64_t>(kLongBlocks - 1));
  ExpectTheTokensOfRunsAlone({hit, warm_[0], warm_[1]});
}

// Where nobody takes rows everything is on its way at once.
TEST_F(WarmUpTest, AloneItIsWarmedAtOnce) {
  const std::shared_ptr<Request> cold = Add(64 * kLongBlocks - 20, 7);
  for (int i = 0; i < 4; ++i) Step();
  core_->Preempt(1);
  int steps = 0;
  do Step();
  while (!Steps(1) && ++steps < 60);
  EXPECT_LE(steps, 4);
  ExpectTheTokensOfRunsAlone({cold});
}

// A cold sequence may be ended, or preempted, with pieces handed over and not.
TEST_F(WarmUpTest, PreemptedAndCancelledWhileCold) {
  const std::shared_ptr<Request> cold = Add(64 * kLongBlocks - 20, 7);
  for (int i = 0; i < 4; ++i) Step();
  StartWarmOnes();
  for (const int pieces : {0, 1, 3}) {
    core_->Preempt(1);
    for (int i = 0; i <= pieces; ++i) Step();
    ASSERT_FALSE(Steps(1));
    core_->CheckInvariants();
  }
  while (!Steps(1)) Step();
  ExpectTheTokensOfRunsAlone({cold, warm_[0], warm_[1]});
  core_->Preempt(1);
  Step();
  Step();
  cold->cancelled = true;
  Step();
  clock_.Advance(memory::kNsPerSecond);
  Step();
  EXPECT_FALSE(kv_->is_open(1) || kv_->is_saved(1) || kv_->is_closing(1));
  core_->CheckInvariants();
}

}  // namespace
}  // namespace augur::engine
