// Prefetch hides what fetch-on-need waits for: the real model with one thread, tiered, behind one
// copying thread whose link is paced so that a layer's copies take 0.8 of a layer's compute. Waits
// are read from ResidencyStats, which is what /metrics exports.
//
// Everything is a ratio within one run; the link is paced in wall time, so a busy machine makes
// compute longer and waits shorter.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "memory/base/clock.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_driver.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using tests::ModelDriver;
using tests::ModelDriverOptions;

constexpr int kBatch = 48;     // makes a layer of 2 ms and more
constexpr int kPrompt = 2050;  // 33 blocks
constexpr int kWarmSteps = 3;
constexpr int kSteps = 15;
constexpr kernels::SelectionBudget kBudget{.top_k = 25, .init = 1, .local = 8};
constexpr int kLayers = 6;

enum class Misses { kUniform, kNatural };

struct Measured {
  double step_seconds = 0;   // mean
  double wait_seconds = 0;   // mean of a step, all causes
  double fetched_pages = 0;  // mean of a step and layer behind the first
};

double WaitedSeconds(const memory::ResidencyStats& stats) {
  double seconds = 0;
  for (const auto& histogram : stats.wait_seconds) seconds += histogram.Snapshot().sum;
  return seconds;
}

double FetchedPages(const memory::ResidencyStats& stats) {
  double pages = 0;
  for (int layer = 0; layer < kLayers; ++layer) pages += stats.layers[layer].fetched_blocks;
  return pages;
}

// What the layer worker asks of a transfer engine, in order.
class LoggedTransfers final : public memory::TransferEngine {
 public:
  struct Event {
    bool submit = false;  // else: wait
    memory::TransferKind kind = memory::TransferKind::kCount;
    memory::Ticket ticket = memory::kNoTicket;
  };

  explicit LoggedTransfers(std::vector<Event>* log) : log_(log) {}

  memory::Ticket Submit(memory::TransferKind kind,
                        std::span<const memory::PageCopy> copies) override {
    const memory::Ticket ticket = threads_.Submit(kind, copies);
    log_->push_back({true, kind, ticket});
    return ticket;
  }
  bool CanSubmit(size_t num_copies) const override { return threads_.CanSubmit(num_copies); }
  bool Done(memory::Ticket ticket) override { return threads_.Done(ticket); }
  void Wait(memory::Ticket ticket) override {
    log_->push_back({false, memory::TransferKind::kCount, ticket});
    threads_.Wait(ticket);
  }
  void Cancel(memory::Ticket ticket) override { threads_.Cancel(ticket); }
  memory::TransferStats Stats() const override { return threads_.Stats(); }

 private:
  memory::CopyThreads threads_{memory::CopyThreadsOptions{}};
  std::vector<Event>* const log_;
};

class OverlapTest : public testing::Test {
 protected:
  OverlapTest() {
    heads_ = scratch_.path() + "/forecast.safetensors";
    tests::WriteRandomForecast(heads_, kLayers, 2 * 64, 320, 5);
    std::mt19937 random(3);
    for (int i = 0; i < kPrompt; ++i) prompt_.push_back(static_cast<int32_t>(3 + random() % 4000));
  }

  ModelDriverOptions Options(bool prefetch, double places_per_second) const {
    return {.folder = std::string(AUGUR_SOURCE_DIR) + "/deploy/models/demo-9m",
            .threads = 1,
            .kv_dtype = kernels::DType::kBF16,
            .max_rows = 600,
            .max_segments = kBatch,
            .max_context = 4096,
            .frames = kBatch * 40,
            .host_blocks = 50 + kBatch * 4,
            .staging_blocks = 32,
            .max_top_k = 32,
            .num_slots = kBudget.top_k,
            .prefetch = prefetch,
            .page_check = 0,
            .forecast_heads = heads_,
            .copies = {.num_threads = 1, .places_per_second = places_per_second}};
  }

  // All slots but the forced blocks' are empty again: every chosen block will be a miss.
  static void DropChosen(ModelDriver* model, const ModelDriver::Sequence& sequence) {
    memory::SequenceKv& kv = model->kv().store()->sequence(sequence.id);
    const int local_begin = sequence.computed / 64 - kBudget.local + 1;
    for (int layer = 1; layer < kLayers; ++layer) {
      for (int head = 0; head < 2; ++head) {
        memory::SlotGroup group = kv.group(model->kv().store()->pools().layout, layer, head);
        for (int32_t& block : group.blocks) {
          if (block >= kBudget.init && block < local_begin) block = memory::kNoBlock;
        }
      }
    }
  }

  Measured Measure(Misses misses, bool prefetch, double places_per_second) {
    ModelDriver model(Options(prefetch, places_per_second));
    const AttentionChoice choice{.prefill = AttentionPolicy::kForecast,
                                 .decode = AttentionPolicy::kForecast,
                                 .budget = kBudget};
    // One prompt computed once, shared by all; each goes its own way with its last token.
    auto donor = model.Start(prompt_, 0, choice, Residency::kTiered);
    model.Prefill(&donor, 512);
    model.PublishAll(donor);
    model.Finish(donor);
    std::vector<ModelDriver::Sequence> batch;
    for (int i = 0; i < kBatch; ++i) {
      std::vector<int32_t> prompt = prompt_;
      prompt.back() = 3 + 31 * i;
      batch.push_back(model.Start(prompt, kWarmSteps + kSteps + 2, choice, Residency::kTiered,
                                  (kPrompt - 1) / 64));
    }
    std::vector<ModelDriver::Part> parts;
    for (auto& sequence : batch) {
      parts.push_back({&sequence, static_cast<int>(sequence.tokens.size()) - sequence.computed});
    }
    model.Step(parts);
    const memory::SteadyClock clock;
    const memory::ResidencyStats& stats = *model.kv().stats();
    Measured before, after;
    int64_t start_ns = 0;
    for (int step = 0; step < kWarmSteps + kSteps; ++step) {
      if (step == kWarmSteps) {
        before = {0, WaitedSeconds(stats), FetchedPages(stats)};
        start_ns = clock.NowNs();
      }
      for (size_t i = 0; i < batch.size(); ++i) {
        batch[i].tokens.push_back(model.sampled()[i]);
        parts[i].rows = 1;
        if (misses == Misses::kUniform) DropChosen(&model, batch[i]);
      }
      model.Step(parts);
    }
    after = {static_cast<double>(clock.NowNs() - start_ns) / memory::kNsPerSecond,
             WaitedSeconds(stats), FetchedPages(stats)};
    return {.step_seconds = after.step_seconds / kSteps,
            .wait_seconds = (after.wait_seconds - before.wait_seconds) / kSteps,
            .fetched_pages = (after.fetched_pages - before.fetched_pages) / kSteps / (kLayers - 1)};
  }

  // Share of fetch-on-need's wait that prefetch hides.
  double Hidden(Misses misses) {
    const Measured free = Measure(misses, true, 0);
    const double layer_seconds = (free.step_seconds - free.wait_seconds) / kLayers;
    EXPECT_GE(layer_seconds, 0.002) << "the layer is too short for the claim";
    const double places = free.fetched_pages / (0.8 * layer_seconds);
    const Measured on_need = Measure(misses, false, places);
    const Measured ahead = Measure(misses, true, places);
    EXPECT_NEAR(ahead.fetched_pages, on_need.fetched_pages, 1e-9) << "another run, other misses";
    const double hidden = 1 - ahead.wait_seconds / on_need.wait_seconds;
    std::printf(
        "layer %.2f ms, %.0f pages a layer at %.0f a second; wait a step: on need %.2f ms, "
        "ahead %.2f ms: %.1f %% hidden\n",
        layer_seconds * 1e3, free.fetched_pages, places, on_need.wait_seconds * 1e3,
        ahead.wait_seconds * 1e3, hidden * 100);
    // The wait that is to be hidden is what the link promises: 0.8 of each copying layer.
    EXPECT_GT(on_need.wait_seconds, 0.6 * layer_seconds * (kLayers - 1));
    return hidden;
  }

  tests::ScratchFolder scratch_;
  std::string heads_;
  std::vector<int32_t> prompt_;
};

// A neighbour on the machine that keeps the copying thread from a core for some milliseconds makes
// waits longer, never shorter: the best of three runs counts.
double BestOfThree(const std::function<double()>& hidden, double enough) {
  double best = 0;
  for (int run = 0; run < 3 && best < enough; ++run) best = std::max(best, hidden());
  return best;
}

TEST_F(OverlapTest, PrefetchHidesUniformMisses) {
  EXPECT_GE(BestOfThree([this] { return Hidden(Misses::kUniform); }, 0.95), 0.95);
}

TEST_F(OverlapTest, PrefetchHidesNaturalMisses) {
  EXPECT_GE(BestOfThree([this] { return Hidden(Misses::kNatural); }, 0.85), 0.85);
}

// Of each layer: the copies for the next one are asked for before it waits for its own.
TEST_F(OverlapTest, TheNextLayersCopiesAreUnderWayBeforeALayerWaits) {
  std::vector<LoggedTransfers::Event> log;
  ModelDriver model(Options(true, 0), std::make_unique<LoggedTransfers>(&log));
  const AttentionChoice choice{.prefill = AttentionPolicy::kForecast,
                               .decode = AttentionPolicy::kForecast,
                               .budget = kBudget};
  auto sequence = model.Start(prompt_, 10, choice, Residency::kTiered);
  model.Prefill(&sequence, 512);
  model.Decode(&sequence, 2);
  DropChosen(&model, sequence);
  log.clear();
  model.Decode(&sequence, 1);
  std::erase_if(log, [](const LoggedTransfers::Event& event) {
    return event.submit && event.kind == memory::TransferKind::kSpill;
  });
  // submit(1), submit(2), wait(1), submit(3), wait(2), ..., submit(L - 1), wait(L - 2), wait(L - 1)
  ASSERT_EQ(log.size(), 2u * (kLayers - 1));
  std::vector<memory::Ticket> submitted;
  for (size_t i = 0; i < log.size(); ++i) {
    const bool expect_submit = i == 0 || (i % 2 == 1 && i + 1 < log.size());
    ASSERT_EQ(log[i].submit, expect_submit) << "event " << i;
    if (log[i].submit) {
      EXPECT_EQ(log[i].kind, memory::TransferKind::kPrefetch);
      submitted.push_back(log[i].ticket);
    } else {
      EXPECT_EQ(log[i].ticket, submitted.at((i - 1) / 2)) << "event " << i;
    }
  }
}

}  // namespace
}  // namespace augur::engine
