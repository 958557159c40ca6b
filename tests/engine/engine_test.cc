// The threaded engine around a model without mathematics: admission, order of events, queue limits,
// deadlines, cancels, slow readers, drain, and that nothing is left behind.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memory/copy_threads.h"
#include "tests/support/recording_runner.h"
#include "tests/support/test_pools.h"

namespace augur::engine {
namespace {

using tests::RecordingRunner;

constexpr tests::RecordShape kShape{.num_layers = 3, .num_kv_heads = 2};

class RecordingSink final : public ResponseSink {
 public:
  void OnAccepted(uint32_t cached_tokens) override { accepted_cached = cached_tokens; }
  void OnProgress(const PrefillProgress& progress) override {
    EXPECT_FALSE(ended());
    const std::lock_guard<std::mutex> lock(mutex);
    progress_seen.push_back(progress);
  }
  void OnChunk(TokenChunk chunk) override {
    EXPECT_FALSE(ended());
    const std::lock_guard<std::mutex> lock(mutex);
    ids.insert(ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    std::vector<TokenId>& own = ids_of[chunk.index];
    own.insert(own.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    num_tokens += chunk.num_tokens;
    first_chunk.count_down_once();
  }
  void OnFinished(const Completion& done) override {
    EXPECT_FALSE(ended());
    completion = done;
    completions.push_back(done);
    if (done.last) end.set_value(absl::OkStatus());
    first_chunk.count_down_once();
  }
  void OnError(const absl::Status& status) override {
    EXPECT_FALSE(ended());
    // A copy of its own: the shared text's count is dropped inside absl, where ThreadSanitizer
    // cannot see.
    end.set_value(absl::Status(status.code(), std::string(status.message())));
    first_chunk.count_down_once();
  }
  absl::Status Wait() { return end_future.get(); }
  void WaitForFirstChunk() { first_chunk.future.get(); }

  std::mutex mutex;
  uint32_t accepted_cached = 0;
  std::vector<PrefillProgress> progress_seen;
  std::vector<TokenId> ids;
  std::map<uint32_t, std::vector<TokenId>> ids_of;  // by choice
  uint32_t num_tokens = 0;
  Completion completion;
  std::vector<Completion> completions;  // in order of arrival

 private:
  struct Once {
    std::promise<void> promise;
    std::future<void> future = promise.get_future();
    std::once_flag flag;
    void count_down_once() {
      std::call_once(flag, [this] { promise.set_value(); });
    }
  };
  bool ended() { return end_future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

  Once first_chunk;
  std::promise<absl::Status> end;
  std::shared_future<absl::Status> end_future = end.get_future().share();
};

EngineOptions SmallOptions() {
  EngineOptions options;
  options.max_context = 2048;
  options.max_batch = 4;
  options.max_batched_tokens = 256;
  options.max_queued_requests = 8;
  options.max_queued_tokens = 4000;
  return options;
}

class EngineTest : public testing::Test {
 protected:
  void Start(const EngineOptions& options, int num_frames = 40, int num_host_blocks = 0) {
    const tests::RecordingOptions recording{.limits = {.max_rows = options.max_batched_tokens,
                                                       .max_segments = options.max_batch,
                                                       .fetch_blocks = kTopK},
                                            .max_top_k = kTopK};
    const memory::KvLayout layout = tests::RecordLayout(kShape);
    pools_ = std::make_unique<tests::TestPools>(layout, num_frames, num_host_blocks,
                                                memory::StagingPages(layout, recording.limits));
    copies_ = std::make_unique<memory::CopyThreads>(memory::CopyThreadsOptions{});
    kv_ = std::make_unique<memory::KvStore>(pools_->pools(), copies_.get(), 1);
    auto runner = std::make_unique<RecordingRunner>(recording, kv_.get(), nullptr, 0);
    runner_ = runner.get();
    engine_ = std::make_unique<Engine>(options, std::vector<TokenId>{1}, std::move(runner),
                                       kv_.get(), nullptr, &clock_);
  }

  std::shared_ptr<Request> Make(int prompt_tokens, uint32_t max_tokens, int first = 2) {
    auto request = std::make_shared<Request>();
    for (int i = 0; i < prompt_tokens; ++i) request->prompt.push_back(first + i % 500);
    request->stopping.max_tokens = max_tokens;
    request->stopping.ignore_eos = true;
    request->output.token_ids = true;
    request->output.progress = true;
    request->arrival_ns = clock_.NowNs();
    request->sink = std::make_shared<RecordingSink>();
    return request;
  }

  // A request that runs and does not move: it takes a place in the batch.
  std::shared_ptr<Request> StartBlocker(uint32_t max_tokens) {
    auto blocker = Make(10, max_tokens);
    blocker->paused = true;
    const absl::Status submitted = engine_->Submit(blocker);
    EXPECT_TRUE(submitted.ok()) << submitted;
    // Gauges are told one after the other.
    const EngineStats& stats = engine_->stats();
    while (submitted.ok() && (stats.running.load() == 0 || stats.blocks_held.load() == 0)) {
      std::this_thread::yield();
    }
    return blocker;
  }

  static RecordingSink& SinkOf(const Request& request) {
    return static_cast<RecordingSink&>(*request.sink);
  }

  static std::vector<TokenId> Reference(const Request& request, uint32_t count,
                                        uint32_t choice = 0) {
    return tests::ReferenceTokens(kShape, request.sampling.seed, request.attention, request.prompt,
                                  static_cast<int>(count), choice);
  }

  std::shared_ptr<Request> MakeChoices(uint32_t n, int prompt_tokens, uint32_t max_tokens,
                                       int first = 2) {
    auto request = Make(prompt_tokens, max_tokens, first);
    request->num_choices = n;
    request->block_keys =
        memory::MakeBlockKeys(memory::DrawBlockKeySecret(), "m", "", request->prompt);
    return request;
  }

  void ExpectNothingHeld() {
    EXPECT_TRUE(engine_->idle());
    EXPECT_EQ(engine_->stats().running.load(), 0);
    EXPECT_EQ(engine_->stats().waiting.load(), 0);
    EXPECT_EQ(engine_->stats().blocks_held.load(), 0);
    EXPECT_EQ(engine_->stats().host_blocks_held.load(), 0);
    EXPECT_EQ(runner_->fault(), "");
  }

  static constexpr int kTopK = 6;

  memory::SteadyClock clock_;
  std::unique_ptr<tests::TestPools> pools_;
  std::unique_ptr<memory::CopyThreads> copies_;
  std::unique_ptr<memory::KvStore> kv_;
  RecordingRunner* runner_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, OneRequestGetsItsTokensProgressAndNumbers) {
  Start(SmallOptions());
  auto request = Make(600, 10);
  ASSERT_TRUE(engine_->Submit(request).ok());
  RecordingSink& sink = SinkOf(*request);
  ASSERT_TRUE(sink.Wait().ok());
  EXPECT_EQ(sink.ids, Reference(*request, 10));
  EXPECT_EQ(sink.num_tokens, 10u);
  ASSERT_GE(sink.progress_seen.size(), 3u);
  EXPECT_EQ(sink.progress_seen.front().processed_tokens, 256u);
  EXPECT_EQ(sink.progress_seen.back().processed_tokens, 600u);
  EXPECT_EQ(sink.completion.reason, FinishReason::kLength);
  EXPECT_EQ(sink.completion.prompt_tokens, 600u);
  EXPECT_EQ(sink.completion.completion_tokens, 10u);
  EXPECT_LE(sink.completion.times.arrival_ns, sink.completion.times.admitted_ns);
  EXPECT_LE(sink.completion.times.admitted_ns, sink.completion.times.first_token_ns);
  EXPECT_LE(sink.completion.times.first_token_ns, sink.completion.times.finished_ns);
}

TEST_F(EngineTest, StopIdsAndMinTokens) {
  Start(SmallOptions());
  auto plain = Make(5, 20);
  const std::vector<TokenId> expected = Reference(*plain, 20);
  auto stopped = Make(5, 20);
  stopped->stopping.stop_token_ids = {expected[3]};
  auto late = Make(5, 20);
  late->stopping.stop_token_ids = {expected[3], expected[7]};
  late->stopping.min_tokens = 5;
  ASSERT_TRUE(engine_->Submit(stopped).ok());
  ASSERT_TRUE(engine_->Submit(late).ok());
  ASSERT_TRUE(SinkOf(*stopped).Wait().ok());
  ASSERT_TRUE(SinkOf(*late).Wait().ok());
  EXPECT_EQ(SinkOf(*stopped).completion.reason, FinishReason::kStop);
  EXPECT_EQ(SinkOf(*stopped).completion.stop_token_id, expected[3]);
  EXPECT_EQ(SinkOf(*stopped).completion.completion_tokens, 4u);
  EXPECT_EQ(SinkOf(*late).completion.completion_tokens, 8u);
}

TEST_F(EngineTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  EngineOptions options = SmallOptions();
  Start(options, 10);  // 640 tokens, less than the context
  const absl::Status context = engine_->Submit(Make(2000, 49));
  EXPECT_EQ(context.code(), absl::StatusCode::kInvalidArgument);
  for (const char* number : {"2000", "49", "2049", "2048"}) {
    EXPECT_NE(std::string(context.message()).find(number), std::string::npos) << context;
  }
  const absl::Status pool = engine_->Submit(Make(600, 41));
  EXPECT_EQ(pool.code(), absl::StatusCode::kInvalidArgument);
  for (const char* number : {"600", "41", "641", "11 resident", "10 frames"}) {
    EXPECT_NE(std::string(pool.message()).find(number), std::string::npos) << pool;
  }
  auto fits = Make(600, 40);
  ASSERT_TRUE(engine_->Submit(fits).ok());
  EXPECT_TRUE(SinkOf(*fits).Wait().ok());
}

TEST_F(EngineTest, AFullQueueIsResourceExhaustedAndLosesNothing) {
  EngineOptions options = SmallOptions();
  options.max_batch = 1;
  options.slow_reader_timeout_ns = kNoDeadline / 2;
  Start(options);
  // The one place in the batch is taken by a reader that does not read.
  const auto blocker = StartBlocker(50);
  std::vector<std::shared_ptr<Request>> queued;
  absl::Status full;
  for (int i = 0; i < 20 && full.ok(); ++i) {
    queued.push_back(Make(20, 3));
    full = engine_->Submit(queued.back());
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  // Eight fit; the blocker may still count until the step that admitted it is over.
  EXPECT_GE(queued.size(), 8u);
  EXPECT_LE(queued.size(), 9u);
  queued.pop_back();
  blocker->paused = false;
  engine_->Wake();
  for (const auto& request : queued) EXPECT_TRUE(SinkOf(*request).Wait().ok());
  EXPECT_TRUE(SinkOf(*blocker).Wait().ok());
  EXPECT_EQ(SinkOf(*blocker).ids, Reference(*blocker, 50));
}

TEST_F(EngineTest, QueueTokensAreBoundedToo) {
  EngineOptions options = SmallOptions();
  options.max_batch = 1;
  Start(options);
  const auto blocker = StartBlocker(50);
  ASSERT_TRUE(engine_->Submit(Make(1990, 5)).ok());
  ASSERT_TRUE(engine_->Submit(Make(1990, 5)).ok());
  const absl::Status full = engine_->Submit(Make(100, 5));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_NE(std::string(full.message()).find("4000"), std::string::npos) << full;
}

TEST_F(EngineTest, DeadlinesEndARequestInTheQueueAndWhileItRuns) {
  EngineOptions options = SmallOptions();
  options.max_batch = 1;
  Start(options);
  auto running = Make(10, 2000);
  running->deadline_ns = clock_.NowNs() + 50 * memory::kNsPerMs;
  running->paused = true;  // so that it is there when the deadline passes
  auto queued = Make(10, 5);
  queued->deadline_ns = clock_.NowNs() + 20 * memory::kNsPerMs;
  ASSERT_TRUE(engine_->Submit(running).ok());
  ASSERT_TRUE(engine_->Submit(queued).ok());
  EXPECT_EQ(SinkOf(*queued).Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(SinkOf(*running).Wait().code(), absl::StatusCode::kDeadlineExceeded);
}

// The core in virtual time, where a row takes 1,000 ns: how long after its deadline a request ends.
class DeadlineTest : public testing::Test, public TokenOutput {
 protected:
  static constexpr int64_t kNsPerRow = 1000;
  static constexpr int kPrompt = 900;
  static constexpr int kTokens = 40;

  void Post(std::vector<TokenEvent> events) override {
    for (TokenEvent& event : events) {
      if (event.kind == TokenEvent::Kind::kFinished || event.kind == TokenEvent::Kind::kFailed) {
        ends_.push_back(event.status);
      }
    }
  }
  std::shared_ptr<Request> Make(int64_t deadline_ns) const {
    auto request = std::make_shared<Request>();
    request->prompt.assign(kPrompt, 7);
    request->stopping = {
        .max_tokens = kTokens, .stop = {}, .stop_token_ids = {}, .ignore_eos = true};
    request->arrival_ns = clock_.NowNs();
    request->deadline_ns = deadline_ns;
    return request;
  }

  const EngineOptions options_{.max_context = 2048, .max_batch = 4, .max_batched_tokens = 256};
  const memory::KvLayout layout_ = tests::RecordLayout(kShape);
  tests::TestPools pools_{layout_, 40, 0, memory::StagingPages(layout_, {.max_rows = 256})};
  memory::KvStore kv_{pools_.pools(), nullptr};
  memory::FakeClock clock_;
  RecordingRunner runner_{
      {.limits = {.max_rows = 256, .max_segments = 4}}, &kv_, &clock_, kNsPerRow};
  EngineStats stats_;
  EngineCore core_{options_, {1}, &runner_, &kv_, this, &stats_, &clock_};
  std::vector<absl::Status> ends_;
};

TEST_F(DeadlineTest, EndsAtMostAChunkOrAStepLate) {
  const int64_t prefill_ns = kPrompt * kNsPerRow;
  const int64_t whole_ns = prefill_ns + (kTokens - 1) * kNsPerRow;
  int in_prefill = 0, in_decode = 0;
  // A deadline in the very last step finds the answer whole.
  for (int64_t limit_ns = 1; limit_ns < whole_ns - kNsPerRow; limit_ns += 997) {
    const int64_t begin_ns = clock_.NowNs();
    const uint64_t tokens = stats_.generated_tokens;
    core_.Add(Make(begin_ns + limit_ns));
    ends_.clear();
    while (ends_.empty()) core_.Step();
    ASSERT_EQ(ends_[0].code(), absl::StatusCode::kDeadlineExceeded);
    const bool prefill = stats_.generated_tokens == tokens;
    const int64_t late_ns = clock_.NowNs() - begin_ns - limit_ns;
    ASSERT_LE(late_ns, (prefill || limit_ns <= prefill_ns ? 256 : 1) * kNsPerRow) << limit_ns;
    ASSERT_EQ(kv_.frame_counts().held, 0);
    ++(prefill ? in_prefill : in_decode);
  }
  EXPECT_GT(in_prefill, 600);
  EXPECT_GT(in_decode, 35);
}

// Whose deadline passes in the queue is never admitted, however many there are.
TEST_F(DeadlineTest, TenThousandThatPassedTakeNoBlock) {
  for (int i = 0; i < 10'000; ++i) {
    core_.Add(Make(clock_.NowNs() + memory::kNsPerMs));
    clock_.Advance(i % 7 == 0 ? 2 * memory::kNsPerMs : memory::kNsPerMs);
    core_.Step();
    ASSERT_TRUE(core_.last_plan().admissions.empty());
    ASSERT_EQ(kv_.frame_counts().held, 0);
  }
  EXPECT_TRUE(core_.idle());
  ASSERT_EQ(ends_.size(), 10'000u);
  for (const absl::Status& end : ends_) {
    ASSERT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(runner_.rows_run(), 0);
}

// The same through the threads, with a batch that is full: they wait, they end, nothing is left.
TEST_F(EngineTest, TenThousandDeadlinesOfAMillisecondTakeNoBlock) {
  EngineOptions options = SmallOptions();
  options.max_batch = 1;
  options.max_queued_requests = 10'000;
  options.max_queued_tokens = int64_t{1} << 40;
  Start(options);
  const auto blocker = StartBlocker(50);
  const int64_t held = engine_->stats().blocks_held.load();
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 10'000; ++i) {
    requests.push_back(Make(600, 100));
    requests.back()->deadline_ns = clock_.NowNs() + memory::kNsPerMs;
    ASSERT_TRUE(engine_->Submit(requests.back()).ok());
  }
  for (const auto& request : requests) {
    ASSERT_EQ(SinkOf(*request).Wait().code(), absl::StatusCode::kDeadlineExceeded);
    ASSERT_EQ(SinkOf(*request).num_tokens, 0u);
  }
  EXPECT_EQ(engine_->stats().blocks_held.load(), held);
  EXPECT_EQ(runner_->rows_run(), 10) << "the blocker's prompt alone";
  blocker->cancelled = true;
  engine_->Wake();
}

TEST_F(EngineTest, ASlowReaderIsCutOffAfterTheLimitAndItsNeighbourIsUnharmed) {
  EngineOptions options = SmallOptions();
  options.slow_reader_timeout_ns = 30 * memory::kNsPerMs;
  Start(options);
  auto slow = Make(10, 1000);
  auto neighbour = Make(12, 200);
  slow->paused = true;
  ASSERT_TRUE(engine_->Submit(slow).ok());
  ASSERT_TRUE(engine_->Submit(neighbour).ok());
  EXPECT_TRUE(SinkOf(*neighbour).Wait().ok());
  EXPECT_EQ(SinkOf(*neighbour).ids, Reference(*neighbour, 200));
  EXPECT_EQ(SinkOf(*slow).Wait().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EngineTest, ARowThatIsNotFiniteFailsAlone) {
  Start(SmallOptions());
  auto poisoned = Make(70, 10);
  poisoned->prompt[5] = tests::kPoison;
  auto neighbour = Make(70, 10);
  ASSERT_TRUE(engine_->Submit(poisoned).ok());
  ASSERT_TRUE(engine_->Submit(neighbour).ok());
  EXPECT_EQ(SinkOf(*poisoned).Wait().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(SinkOf(*neighbour).Wait().ok());
  EXPECT_EQ(SinkOf(*neighbour).ids, Reference(*neighbour, 10));
}

TEST_F(EngineTest, ASecondRequestWithTheSamePromptIsCached) {
  Start(SmallOptions());
  const memory::BlockKeySecret secret = memory::DrawBlockKeySecret();
  for (int turn = 0; turn < 2; ++turn) {
    auto request = Make(200, 3);
    request->block_keys = memory::MakeBlockKeys(secret, "m", "", request->prompt);
    ASSERT_TRUE(engine_->Submit(request).ok());
    ASSERT_TRUE(SinkOf(*request).Wait().ok());
    EXPECT_EQ(SinkOf(*request).completion.cached_tokens, turn == 0 ? 0u : 192u);
    EXPECT_EQ(SinkOf(*request).accepted_cached, turn == 0 ? 0u : 192u);
    EXPECT_EQ(SinkOf(*request).ids, Reference(*request, 3));
  }
}

class EngineChoicesTest : public EngineTest, public testing::WithParamInterface<ResidencyMode> {
 protected:
  void StartChoices(EngineOptions options) {
    options.residency = GetParam();
    options.num_slots = kTopK + 1;
    Start(options, 60, GetParam() == ResidencyMode::kDevice ? 0 : 60);
  }
};

// Four choices compute the prompt's full blocks once, and each the rest of it and its own tokens.
TEST_P(EngineChoicesTest, ShareTheirPromptAndDrawEachItsOwn) {
  StartChoices(SmallOptions());
  auto request = MakeChoices(4, 600, 10);
  ASSERT_TRUE(engine_->Submit(request).ok());
  RecordingSink& sink = SinkOf(*request);
  ASSERT_TRUE(sink.Wait().ok());
  for (uint32_t choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(sink.ids_of[choice], Reference(*request, 10, choice)) << choice;
  }
  ASSERT_EQ(sink.completions.size(), 4u);
  std::set<uint32_t> indices;
  for (const Completion& completion : sink.completions) {
    indices.insert(completion.index);
    EXPECT_EQ(completion.prompt_tokens, 600u);
    EXPECT_EQ(completion.cached_tokens, 0u) << "what choices share is no cached prompt";
    EXPECT_EQ(completion.completion_tokens, 10u);
    EXPECT_EQ(completion.last, &completion == &sink.completions.back());
    if (GetParam() == ResidencyMode::kDevice) {  // on the host the prompt lands a little later
      EXPECT_LT(completion.times.admitted_ns, sink.completions.front().times.finished_ns);
    }
  }
  EXPECT_EQ(indices.size(), 4u);
  EXPECT_EQ(sink.progress_seen.back().processed_tokens, 600u);
  // The last token of each choice is not computed.
  EXPECT_EQ(runner_->rows_run(), 600 + 3 * (600 - 576) + 4 * 9);
  EXPECT_EQ(engine_->stats().prompt_tokens.load(), 600u);
  EXPECT_EQ(engine_->stats().recomputed_tokens.load(), 3u * (600 - 576));
  EXPECT_EQ(engine_->stats().generated_tokens.load(), 40u);
  EXPECT_EQ(engine_->stats().accepted.load(), 1u);
  while (!engine_->idle()) std::this_thread::yield();
  EXPECT_EQ(engine_->stats().outcomes[static_cast<size_t>(Outcome::kLength)].load(), 1u);
  EXPECT_EQ(runner_->fault(), "");
}

// One place in the batch: choices run one after the other, the prompt is still computed once.
TEST_P(EngineChoicesTest, MoreChoicesThanPlacesRunInTurn) {
  EngineOptions options = SmallOptions();
  StartChoices(options);
  const auto blocker = StartBlocker(400);
  auto request = MakeChoices(4, 300, 20);
  ASSERT_TRUE(engine_->Submit(request).ok());
  RecordingSink& sink = SinkOf(*request);
  ASSERT_TRUE(sink.Wait().ok());
  for (uint32_t choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(sink.ids_of[choice], Reference(*request, 20, choice)) << choice;
  }
  EXPECT_EQ(engine_->stats().prompt_tokens.load(), 310u);
  EXPECT_EQ(engine_->stats().recomputed_tokens.load(), 3u * (300 - 256));
  blocker->cancelled = true;
  engine_->Wake();
}

TEST_P(EngineChoicesTest, EndTogetherByCancelDeadlineAndError) {
  StartChoices(SmallOptions());
  auto cancelled = MakeChoices(4, 100, 1900);
  ASSERT_TRUE(engine_->Submit(cancelled).ok());
  SinkOf(*cancelled).WaitForFirstChunk();
  cancelled->cancelled = true;
  engine_->Wake();
  EXPECT_EQ(SinkOf(*cancelled).Wait().code(), absl::StatusCode::kCancelled);

  auto late = MakeChoices(4, 100, 1900, 3);
  late->paused = true;
  late->deadline_ns = clock_.NowNs() + 20 * memory::kNsPerMs;
  ASSERT_TRUE(engine_->Submit(late).ok());
  EXPECT_EQ(SinkOf(*late).Wait().code(), absl::StatusCode::kDeadlineExceeded);

  auto poisoned = MakeChoices(4, 100, 50, 4);
  poisoned->prompt[5] = tests::kPoison;
  ASSERT_TRUE(engine_->Submit(poisoned).ok());
  EXPECT_EQ(SinkOf(*poisoned).Wait().code(), absl::StatusCode::kInternal);

  while (!engine_->idle()) std::this_thread::yield();
  const int64_t limit_ns = clock_.NowNs() + 5 * memory::kNsPerSecond;
  while (engine_->stats().running.load() + engine_->stats().blocks_held.load() > 0 &&
         clock_.NowNs() < limit_ns) {
    std::this_thread::yield();
  }
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(Residencies, EngineChoicesTest,
                         testing::Values(ResidencyMode::kDevice, ResidencyMode::kTiered,
                                         ResidencyMode::kAuto));

TEST_F(EngineTest, ChoicesAllFitTheQueueOrTheRequestIsRefused) {
  EngineOptions options = SmallOptions();
  options.max_queued_requests = 6;
  Start(options);
  auto blockers = MakeChoices(4, 10, 50);
  blockers->paused = true;
  ASSERT_TRUE(engine_->Submit(blockers).ok());
  while (engine_->stats().running.load() < 4) std::this_thread::yield();
  auto first = MakeChoices(3, 10, 5, 3);
  // The step that admitted the blockers may not be over.
  while (!engine_->Submit(first).ok()) std::this_thread::yield();
  const absl::Status full = engine_->Submit(MakeChoices(4, 10, 5, 4));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  for (const char* number : {"3", "4", "6"}) {
    EXPECT_NE(std::string(full.message()).find(number), std::string::npos) << full;
  }
  EXPECT_TRUE(engine_->Submit(MakeChoices(3, 10, 5, 5)).ok());
  EXPECT_EQ(engine_->Submit(MakeChoices(5, 10, 5)).code(), absl::StatusCode::kInvalidArgument)
      << "more than the batch";
}

// What waits is admitted by priority, within one by age.
TEST_F(EngineTest, AHigherPriorityGoesFirst) {
  EngineOptions options = SmallOptions();
  options.max_batch = 1;
  Start(options);
  const auto blocker = StartBlocker(50);
  const std::vector<int32_t> priorities = {
      0, -1, 5, 0, std::numeric_limits<int32_t>::max(), 5, std::numeric_limits<int32_t>::min()};
  std::vector<std::shared_ptr<Request>> requests;
  for (const int32_t priority : priorities) {
    requests.push_back(Make(10, 3));
    requests.back()->priority = priority;
    ASSERT_TRUE(engine_->Submit(requests.back()).ok());
  }
  blocker->cancelled = true;
  engine_->Wake();
  for (const auto& request : requests) ASSERT_TRUE(SinkOf(*request).Wait().ok());
  std::vector<size_t> order = {0, 1, 2, 3, 4, 5, 6};
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SinkOf(*requests[a]).completion.times.admitted_ns <
           SinkOf(*requests[b]).completion.times.admitted_ns;
  });
  EXPECT_EQ(order, (std::vector<size_t>{4, 2, 5, 0, 3, 1, 6}));
}

TEST_F(EngineTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  EngineOptions options = SmallOptions();
  options.max_batch = 1;
  Start(options);
  auto running = Make(10, 40);
  running->paused = true;
  auto queued = Make(10, 5);
  ASSERT_TRUE(engine_->Submit(running).ok());
  while (engine_->stats().running.load() == 0) std::this_thread::yield();
  ASSERT_TRUE(engine_->Submit(queued).ok());
  engine_->BeginDrain(clock_.NowNs() + 60 * memory::kNsPerSecond);
  EXPECT_EQ(SinkOf(*queued).Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->Submit(Make(10, 5)).code(), absl::StatusCode::kUnavailable);
  running->paused = false;
  engine_->Wake();
  EXPECT_TRUE(SinkOf(*running).Wait().ok());
  while (!engine_->idle()) std::this_thread::yield();
  ExpectNothingHeld();
}

TEST_F(EngineTest, DrainDeadlineEndsWhatStillRuns) {
  Start(SmallOptions());
  auto stuck = Make(10, 40);
  stuck->paused = true;
  ASSERT_TRUE(engine_->Submit(stuck).ok());
  engine_->BeginDrain(clock_.NowNs() + 20 * memory::kNsPerMs);
  EXPECT_EQ(SinkOf(*stuck).Wait().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineTest, DestructionEndsEverything) {
  Start(SmallOptions());
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(Make(10, 1500));
    ASSERT_TRUE(engine_->Submit(requests.back()).ok());
  }
  engine_.reset();
  for (const auto& request : requests) {
    const absl::Status status = SinkOf(*request).Wait();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnavailable) << status;
  }
}

class EngineCancelTest : public EngineTest, public testing::WithParamInterface<ResidencyMode> {};

// Four threads submit, read and cancel at random moments.
TEST_P(EngineCancelTest, AThousandCancelsAtRandomMomentsLeaveEveryBlockFree) {
  EngineOptions options = SmallOptions();
  options.max_queued_requests = 1000;
  options.max_queued_tokens = 1 << 30;
  options.residency = GetParam();
  options.num_slots = kTopK + 1;
  Start(options, 40, GetParam() == ResidencyMode::kDevice ? 0 : 60);
  std::atomic<int> cancelled{0};
  const auto client = [&](int seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 250; ++i) {
      auto request = Make(1 + static_cast<int>(random() % 700), 1 + random() % 300);
      if (random() % 2 == 0) {
        request->attention = {.prefill = AttentionPolicy::kSparse,
                              .decode = AttentionPolicy::kForecast,
                              .budget = {.top_k = kTopK, .init = 1, .local = 2}};
      }
      const absl::Status submitted = engine_->Submit(request);
      ASSERT_TRUE(submitted.ok()) << submitted;
      const int moment = static_cast<int>(random() % 3);
      if (moment == 1) SinkOf(*request).WaitForFirstChunk();
      if (moment == 2) std::this_thread::yield();
      request->cancelled = true;
      engine_->Wake();
      const absl::Status end = SinkOf(*request).Wait();
      ASSERT_TRUE(end.ok() || end.code() == absl::StatusCode::kCancelled) << end;
      if (!end.ok()) ++cancelled;
      const std::vector<TokenId> reference = Reference(*request, SinkOf(*request).num_tokens);
      ASSERT_EQ(SinkOf(*request).ids, reference);
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) clients.emplace_back(client, i);
  for (std::thread& thread : clients) thread.join();
  EXPECT_GT(cancelled.load(), 300);
  while (!engine_->idle()) std::this_thread::yield();
  // The sinks have heard the end; the gauges follow at the end of the step.
  const int64_t limit_ns = clock_.NowNs() + 5 * memory::kNsPerSecond;
  while (engine_->stats().blocks_held.load() != 0 && clock_.NowNs() < limit_ns)
    std::this_thread::yield();
  ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(Residencies, EngineCancelTest,
                         testing::Values(ResidencyMode::kDevice, ResidencyMode::kTiered,
                                         ResidencyMode::kAuto));

// Long prompts and answers over a small device pool: everything comes back from the host.
TEST_F(EngineTest, TieredSequencesBiggerThanTheDeviceGetTheirTokens) {
  EngineOptions options = SmallOptions();
  options.residency = ResidencyMode::kTiered;
  options.num_slots = kTopK + 1;
  Start(options, 20, 100);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(Make(1200 + i, 200, 2 + i));
    if (i < 2) {
      requests.back()->attention = {
          .prefill = AttentionPolicy::kSparse,
          .decode = i == 0 ? AttentionPolicy::kSparse : AttentionPolicy::kForecast,
          .budget = {.top_k = kTopK, .init = 1, .local = 2}};
    }
    ASSERT_TRUE(engine_->Submit(requests.back()).ok());
  }
  for (const auto& request : requests) {
    ASSERT_TRUE(SinkOf(*request).Wait().ok());
    EXPECT_EQ(SinkOf(*request).ids, Reference(*request, 200));
  }
  while (!engine_->idle()) std::this_thread::yield();
  EXPECT_EQ(runner_->fault(), "");
}

}  // namespace
}  // namespace augur::engine
