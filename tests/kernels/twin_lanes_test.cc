// Follow orders what lanes do: data that goes from the main order over two lanes and back, again
// and again through the same memory, outside and inside of recorded graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend_array.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

// Every round gathers the rows of a table by its own ids, spills them as pages, fetches them again
// and reads them: rows[r] = table[ids[r]].
class RoundTrip {
 public:
  RoundTrip(Backend& backend, int rounds)
      : backend_(&backend),
        rounds_(rounds),
        values_(RandomFloats(size_t(kTableRows) * kHidden, 4)),
        table_(&backend, values_),
        gathered_(&backend, size_t(kRows) * kHidden),
        fetched_(&backend, size_t(kRows) * kHidden),
        busy_(&backend, size_t(2) * kRows * kHidden),
        host_(backend, size_t(kRows) * kHidden * sizeof(float)),
        ids_(backend, size_t(rounds) * kRows),
        in_order_(backend, kRows),
        spills_(backend, kPages),
        fetches_(backend, kPages),
        rows_(backend, size_t(rounds) * kRows * kHidden) {
    for (int row = 0; row < kRows; ++row) in_order_[row] = row;
    for (int page = 0; page < kPages; ++page) {
      std::byte* host = host_.data() + page * kPageBytes;
      spills_[page] = {reinterpret_cast<std::byte*>(gathered_.data()) + page * kPageBytes, host};
      fetches_[page] = {host, reinterpret_cast<std::byte*>(fetched_.data()) + page * kPageBytes};
    }
  }

  void ChooseIds(uint32_t seed) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < ids_.size(); ++i) {
      ids_[i] = static_cast<int32_t>(random() % kTableRows);
    }
    std::fill_n(rows_.data(), rows_.size(), 0.0f);
  }

  void Run(Backend* main) {
    Backend* spill = main->OnLane(Lane::kSpill);
    Backend* fetch = main->OnLane(Lane::kFetch);
    for (int round = 0; round < rounds_; ++round) {
      Gather(main, ids_.data() + round * kRows, table_.data(), kTableRows, gathered_.data());
      spill->Follow(main);
      // In no need of the lanes, and under way when the fetched rows are read.
      main->GatedSilu({.gate_up = busy_.data(),
                       .out = busy_.data() + 2 * kHidden,
                       .rows = 1,
                       .width = kHidden});
      CopyAll(spill, spills_.data());
      fetch->Follow(spill);
      CopyAll(fetch, fetches_.data());
      main->Follow(fetch);
      Gather(main, in_order_.data(), fetched_.data(), kRows,
             rows_.data() + size_t(round) * kRows * kHidden);
    }
  }

  void Check() {
    for (size_t row = 0; row < ids_.size(); ++row) {
      ASSERT_TRUE(SameBits(rows_.data() + row * kHidden,
                           values_.data() + size_t(ids_[row]) * kHidden, kHidden))
          << "round " << row / kRows << " row " << row % kRows;
    }
  }

 private:
  static constexpr int kHidden = 2048;
  static constexpr int kRows = 64;
  static constexpr int kTableRows = 100;
  static constexpr int kPageBytes = 32768;
  static constexpr int kPages = kRows * kHidden * sizeof(float) / kPageBytes;

  static void Gather(Backend* backend, const int32_t* ids, const float* table, int vocab,
                     float* out) {
    backend->Embedding({.ids = ids,
                        .table = table,
                        .table_dtype = DType::kF32,
                        .out = out,
                        .rows = kRows,
                        .vocab = vocab,
                        .hidden = kHidden});
  }
  static void CopyAll(Backend* lane, const PageCopy* pages) {
    lane->CopyPages({.pages = pages, .known_pages = kPages, .page_bytes = kPageBytes, .quota = 2});
  }

  Backend* backend_;
  int rounds_;
  std::vector<float> values_;
  BackendArray<float> table_;
  BackendArray<float> gathered_, fetched_;  // [kRows, kHidden]
  BackendArray<float> busy_;
  SharedArray<std::byte> host_;
  SharedArray<int32_t> ids_, in_order_;
  SharedArray<PageCopy> spills_, fetches_;
  SharedArray<float> rows_;  // [rounds, kRows, kHidden]
};

TEST(TwinLanesTest, FollowOrdersLanes) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    RoundTrip trip(*backend, kSanitized ? 3 : 25);
    for (uint32_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(name);
      trip.ChooseIds(seed);
      trip.Run(backend.get());
      backend->Synchronize();
      trip.Check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TwinLanesTest, FollowOrdersLanesOfARecordedStep) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    RoundTrip trip(*backend, kSanitized ? 3 : 25);
    const std::unique_ptr<StepGraph> graph =
        backend->Record([&](Backend* recorder) { trip.Run(recorder); });
    for (uint32_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(name);
      trip.ChooseIds(seed);
      backend->Launch(*graph);
      // The lanes are as good as before for what is not recorded.
      if (seed == 1) trip.Run(backend.get());
      backend->Synchronize();
      trip.Check();
      if (HasFatalFailure()) return;
    }
  }
}

// What a layer of a tiered step does: one lane places chosen blocks, another fetches what is
// missing, the main order reads the pages.
class PlacedReads {
 public:
  explicit PlacedReads(Backend& backend)
      : host_(backend, size_t(kHeads) * kBlocks * kPageBytes),
        slots_(&backend, size_t(kHeads) * kSlots * kPageBytes),
        read_(backend, size_t(kHeads) * kChosen * kPageBytes),
        sources_(backend, kHeads * kBlocks),
        slot_pages_(backend, kHeads * kSlots),
        to_(backend, kHeads * kChosen),
        slot_blocks_(backend, kHeads * kSlots),
        slot_stamps_(backend, kHeads * kSlots),
        blocks_(backend, kHeads * kChosen),
        counts_(backend, std::vector<int32_t>(kHeads, kChosen)),
        pages_(backend, kHeads * kChosen),
        segment_(backend, 1),
        range_(backend, 1),
        copies_(backend, kHeads * kChosen),
        reads_(backend, kHeads * kChosen),
        num_copies_(backend, 1) {
    for (size_t i = 0; i < host_.size(); ++i) {
      host_[i] = static_cast<std::byte>(i / kPageBytes * 7 + i % 251);
    }
    for (size_t i = 0; i < sources_.size(); ++i) sources_[i] = host_.data() + i * kPageBytes;
    for (size_t i = 0; i < slot_pages_.size(); ++i) {
      slot_pages_[i] = slots_.data() + i * kPageBytes;
    }
    for (size_t i = 0; i < to_.size(); ++i) to_[i] = read_.data() + i * kPageBytes;
    range_[0] = {
        const_cast<std::byte* const*>(pages_.data()), to_.data(), kChosen, kChosen, kChosen, 0};
  }

  void Choose(int position, std::mt19937& random) {
    segment_[0] = {.rows = {0, 1, position},
                   .sources = sources_.data(),
                   .source_stride = kBlocks,
                   .slot_blocks = slot_blocks_.data(),
                   .slot_stamps = slot_stamps_.data(),
                   .slot_pages = slot_pages_.data(),
                   .num_slots = kSlots,
                   .slot_stride = kSlots};
    std::vector<int32_t> all(kBlocks);
    for (int block = 0; block < kBlocks; ++block) all[block] = block;
    for (int head = 0; head < kHeads; ++head) {
      std::sample(all.begin(), all.end(), blocks_.data() + head * kChosen, kChosen, random);
    }
    std::fill_n(read_.data(), read_.size(), std::byte{0});
  }

  void Run(Backend* main) {
    Backend* select = main->OnLane(Lane::kSelect);
    Backend* fetch = main->OnLane(Lane::kFetch);
    select->Follow(main);
    select->PlaceBlocks({.segments = segment_.data(),
                         .num_segments = 1,
                         .num_kv_heads = kHeads,
                         .blocks = blocks_.data(),
                         .counts = counts_.data(),
                         .pages = pages_.data(),
                         .selection_stride = kChosen,
                         .max_slots = kSlots,
                         .copies = copies_.data(),
                         .num_copies = num_copies_.data()});
    fetch->Follow(select);
    fetch->CopyPages({.pages = copies_.data(),
                      .num_pages = num_copies_.data(),
                      .page_bytes = kPageBytes,
                      .quota = 2});
    main->Follow(fetch);
    main->ListPageCopies({.segments = range_.data(),
                          .num_segments = 1,
                          .num_kv_heads = kHeads,
                          .max_blocks = kChosen,
                          .copies = reads_.data()});
    main->CopyPages({.pages = reads_.data(),
                     .known_pages = kHeads * kChosen,
                     .page_bytes = kPageBytes,
                     .quota = 2});
  }

  void Check() {
    for (int i = 0; i < kHeads * kChosen; ++i) {
      const size_t source = size_t(i) / kChosen * kBlocks + blocks_[i];
      ASSERT_EQ(std::memcmp(read_.data() + size_t(i) * kPageBytes,
                            host_.data() + source * kPageBytes, kPageBytes),
                0)
          << "block " << blocks_[i] << ", " << num_copies_[0] << " copies";
    }
  }

 private:
  static constexpr int kHeads = 2;
  static constexpr int kBlocks = 64;
  static constexpr int kSlots = 20;
  static constexpr int kChosen = 12;
  static constexpr int kPageBytes = 16384;

  SharedArray<std::byte> host_;  // [kHeads][kBlocks] pages
  BackendArray<std::byte> slots_;
  SharedArray<std::byte> read_;
  SharedArray<std::byte*> sources_, slot_pages_, to_;
  SharedArray<int32_t> slot_blocks_, slot_stamps_;
  SharedArray<int32_t> blocks_, counts_;
  SharedArray<const std::byte*> pages_;
  SharedArray<PlaceSegment> segment_;
  SharedArray<PageRange> range_;
  SharedArray<PageCopy> copies_, reads_;
  SharedArray<int32_t> num_copies_;
};

TEST(TwinLanesTest, PlacedBlocksArriveBeforeTheyAreRead) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    PlacedReads reads(*backend);
    const std::unique_ptr<StepGraph> graph =
        backend->Record([&](Backend* recorder) { reads.Run(recorder); });
    std::mt19937 random(5);
    for (int step = 0; step < 60; ++step) {
      SCOPED_TRACE(name + " step " + std::to_string(step));
      reads.Choose(4000 + step, random);
      if (step % 3 == 0) {
        reads.Run(backend.get());
      } else {
        backend->Launch(*graph);
      }
      backend->Synchronize();
      reads.Check();
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace augur::kernels
