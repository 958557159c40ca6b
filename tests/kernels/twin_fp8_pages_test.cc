// Pages in fp8 on every backend: rows rounded as they are appended, pages packed and unpacked as
// they are copied, keys read where they lie, all with the bits of kernels/fp8_page.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend_array.h"
#include "kernels/fp8_page.h"
#include "kernels/ops/project_keys.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

constexpr std::byte kUntouched{0xee};

// Rounded rows of magnitudes that spread from row to row, in places NaN; a device keeps no payload.
std::vector<std::byte> RoundedPage(DType dtype, int head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const size_t row_bytes = head_dim * BytesOf(dtype);
  std::vector<std::byte> page(2 * kBlockTokens * row_bytes);
  for (int row = 0; row < 2 * kBlockTokens; ++row) {
    const int scale = static_cast<int>(random() % 24) - 12;
    for (int c = 0; c < head_dim; ++c) {
      const float value = random() % 97 == 0 ? 0.0f : std::ldexp(normal(random), scale);
      WriteAs(dtype, value, page.data() + row * row_bytes, c);
    }
    RoundRowToFp8(dtype, head_dim, page.data() + row * row_bytes);
  }
  return page;
}

std::vector<std::byte> Packed(DType dtype, int head_dim, const std::vector<std::byte>& page) {
  std::vector<std::byte> packed(Fp8PageBytes(head_dim));
  const size_t half = page.size() / 2;
  PackHalfPage(dtype, head_dim, page.data(), packed.data());
  PackHalfPage(dtype, head_dim, page.data() + half, packed.data() + Fp8HalfBytes(head_dim));
  return packed;
}

// `count` pages and one between two places of the device, in one list: packed, then unpacked.
void CheckCopies(Backend& backend, DType dtype, int head_dim, int count, bool halves) {
  const size_t page_bytes = size_t{2} * kBlockTokens * head_dim * BytesOf(dtype);
  const size_t plain = halves ? page_bytes / 2 : page_bytes;
  const size_t fp8 = halves ? Fp8HalfBytes(head_dim) : Fp8PageBytes(head_dim);
  SharedArray<std::byte> host(backend, count * fp8);
  BackendArray<std::byte> device(&backend, (2 * count + 2) * plain);
  std::vector<std::byte> pages, packed;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::byte> page = RoundedPage(dtype, head_dim, 11 + i);
    const std::vector<std::byte> form = Packed(dtype, head_dim, page);
    pages.insert(pages.end(), page.begin(), page.begin() + plain);
    packed.insert(packed.end(), form.begin(), form.begin() + fp8);
  }
  const std::vector<std::byte> aside = RoundedPage(dtype, head_dim, 5);
  backend.Copy(device.data(), pages.data(), pages.size());
  backend.Copy(device.data() + 2 * count * plain, aside.data(), plain);
  SharedArray<PageCopy> list(backend, size_t(count) + 1);
  const Fp8Pages where{host.data(), host.data() + host.size(), head_dim, dtype};
  const auto run = [&](int quota) {
    Backend* const lane = backend.OnLane(Lane::kFetch);
    lane->Follow(&backend);
    lane->CopyPages({.pages = list.data(),
                     .known_pages = count + 1,
                     .page_bytes = static_cast<int>(plain),
                     .quota = quota,
                     .fp8 = where});
    backend.Follow(lane);
    backend.Synchronize();
  };
  for (int i = 0; i < count; ++i) list[i] = {device.data() + i * plain, host.data() + i * fp8};
  list[count] = {device.data() + 2 * count * plain, device.data() + (2 * count + 1) * plain};
  run(2);
  EXPECT_TRUE(host.ToVector() == packed) << "packed";
  for (int i = 0; i < count; ++i) {
    const int to = (i * 7 + 3) % count;
    list[i] = {host.data() + i * fp8, device.data() + (count + to) * plain};
  }
  run(3);
  std::vector<std::byte> back((2 * count + 2) * plain, kUntouched);
  backend.Copy(back.data(), device.data(), back.size());
  backend.Synchronize();
  for (int i = 0; i < count; ++i) {
    const int to = (i * 7 + 3) % count;
    EXPECT_EQ(std::memcmp(back.data() + (count + to) * plain, pages.data() + i * plain, plain), 0)
        << "page " << i;
  }
  EXPECT_EQ(std::memcmp(back.data() + (2 * count + 1) * plain, aside.data(), plain), 0)
      << "an entry between two plain pages";
}

TEST(TwinFp8PagesTest, CopiesPackAndUnpack) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const int head_dim : {16, 64, 128}) {
        for (const bool halves : {false, true}) {
          SCOPED_TRACE(name + " " + NameOf(dtype) + " d " + std::to_string(head_dim));
          CheckCopies(*backend, dtype, head_dim, 1, halves);
          CheckCopies(*backend, dtype, head_dim, 40, halves);
        }
      }
    }
  }
}

// NaN and infinities, and rows that nobody has rounded: what comes back is what rounding gives.
TEST(TwinFp8PagesTest, WhatIsNotRoundedIsRoundedByTheCopy) {
  constexpr int kHeadDim = 64;
  constexpr DType kType = DType::kBF16;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    std::vector<std::byte> page = RoundedPage(kType, kHeadDim, 1);
    const std::vector<float> values = RandomFloats(2 * kBlockTokens * kHeadDim, 9);
    for (size_t i = 0; i < values.size(); ++i) WriteAs(kType, values[i] * 37, page.data(), i);
    WriteAs(kType, NAN, page.data(), 3);
    WriteAs(kType, INFINITY, page.data(), kHeadDim + 5);
    WriteAs(kType, -INFINITY, page.data(), 70 * kHeadDim);
    SharedArray<std::byte> host(*backend, Fp8PageBytes(kHeadDim));
    BackendArray<std::byte> device(backend.get(), page.size());
    backend->Copy(device.data(), page.data(), page.size());
    SharedArray<PageCopy> list(*backend, 1);
    list[0] = {device.data(), host.data()};
    backend->CopyPages({.pages = list.data(),
                        .known_pages = 1,
                        .page_bytes = static_cast<int>(page.size()),
                        .quota = 1,
                        .fp8 = {host.data(), host.data() + host.size(), kHeadDim, kType}});
    backend->Synchronize();
    EXPECT_TRUE(host.ToVector() == Packed(kType, kHeadDim, page)) << name;
  }
}

struct AppendCase {
  DType dtype;
  int head_dim;
};

// Pages of a RopeAppend call of random rows, with or without rounding.
std::vector<std::byte> Appended(Backend& backend, const AppendCase& one, bool fp8_rows) {
  constexpr int kQHeads = 4, kKvHeads = 2, kRows = 70, kFirst = 30, kBlocks = 2;
  const int d = one.head_dim, stride = (kQHeads + 2 * kKvHeads) * d;
  const size_t page_bytes = size_t{2} * kBlockTokens * d * BytesOf(one.dtype);
  SharedArray<float> qkv(backend, RandomFloats(size_t(kRows) * stride, 7));
  SharedArray<float> cos(backend, RandomFloats(size_t(kFirst + kRows) * d / 2, 8));
  SharedArray<float> sin(backend, RandomFloats(size_t(kFirst + kRows) * d / 2, 9));
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < stride; ++i) qkv[size_t(r) * stride + i] *= std::ldexp(1.0f, r % 13 - 6);
  }
  qkv[size_t(5) * stride + kQHeads * d] = NAN;
  SharedArray<std::byte> pool(backend, kBlocks * kKvHeads * page_bytes);
  std::fill_n(pool.data(), pool.size(), kUntouched);
  SharedArray<std::byte*> pages(backend, kBlocks * kKvHeads);
  for (int i = 0; i < kBlocks * kKvHeads; ++i) pages[i] = pool.data() + i * page_bytes;
  SharedArray<AppendSegment> segments(backend, 1);
  segments[0] = {.rows = {0, kRows, kFirst}, .pages = pages.data()};
  backend.RopeAppend({.qkv = qkv.data(),
                      .segments = segments.data(),
                      .num_segments = 1,
                      .rows = kRows,
                      .row_stride = stride,
                      .num_q_heads = kQHeads,
                      .num_kv_heads = kKvHeads,
                      .head_dim = d,
                      .dtype = one.dtype,
                      .cos = cos.data(),
                      .sin = sin.data(),
                      .fp8_rows = fp8_rows});
  backend.Synchronize();
  // Rounded here where the op has not.
  for (int i = 0; i < kBlocks * kKvHeads * 2 * kBlockTokens && !fp8_rows; ++i) {
    std::byte* const row = pool.data() + size_t(i) * d * BytesOf(one.dtype);
    const bool written = std::any_of(row, row + d * BytesOf(one.dtype),
                                     [](std::byte byte) { return byte != kUntouched; });
    if (written) RoundRowToFp8(one.dtype, d, row);
  }
  return pool.ToVector();
}

// The same bits where both are numbers, NaN for NaN.
void ExpectSameRows(DType dtype, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  for (size_t i = 0; i < a.size() / BytesOf(dtype); ++i) {
    const float left = ReadAs(dtype, a.data(), i), right = ReadAs(dtype, b.data(), i);
    if (std::isnan(left) && std::isnan(right)) continue;
    ASSERT_EQ(left, right) << "element " << i;
  }
}

TEST(TwinFp8PagesTest, AppendedRowsAreRounded) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const AppendCase& one : {AppendCase{DType::kBF16, 128}, AppendCase{DType::kBF16, 64},
                                  AppendCase{DType::kF16, 80}, AppendCase{DType::kF32, 6}}) {
      SCOPED_TRACE(name + " " + NameOf(one.dtype) + " d " + std::to_string(one.head_dim));
      ExpectSameRows(one.dtype, Appended(*backend, one, true), Appended(*backend, one, false));
      if (HasFatalFailure()) return;
    }
  }
}

// The window across the beginning of a block reads the block before in the host pool.
TEST(TwinFp8PagesTest, CompressedKeysAreThoseOfThePlainPage) {
  constexpr DType kType = DType::kBF16;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int d : {64, 128, 6}) {
      const size_t page_bytes = size_t{2} * kBlockTokens * d * 2;
      SharedArray<std::byte> plain(*backend, RoundedPage(kType, d, 1));
      SharedArray<std::byte> fp8(*backend, Packed(kType, d, RoundedPage(kType, d, 1)));
      SharedArray<std::byte> open(*backend, RoundedPage(kType, d, 2));
      std::vector<std::vector<std::byte>> keys;
      for (std::byte* const before : {plain.data(), fp8.data()}) {
        SharedArray<std::byte> key_page(*backend, page_bytes);
        SharedArray<std::byte*> key_pages(*backend, std::vector<std::byte*>{key_page.data()});
        SharedArray<const std::byte*> pages(*backend,
                                            std::vector<const std::byte*>{before, open.data()});
        SharedArray<CompressSegment> segments(*backend, 1);
        segments[0] = {.rows = {0, 60, 64},
                       .pages = pages.data(),
                       .key_pages = key_pages.data(),
                       .key_page_stride = 1};
        backend->CompressKeys({.segments = segments.data(),
                               .num_segments = 1,
                               .num_kv_heads = 1,
                               .head_dim = d,
                               .dtype = kType,
                               .fp8 = {fp8.data(), fp8.data() + fp8.size(), d, kType}});
        backend->Synchronize();
        keys.push_back(key_page.ToVector());
      }
      EXPECT_TRUE(keys[0] == keys[1]) << name << " d " << d;
      EXPECT_TRUE(std::any_of(keys[0].begin(), keys[0].end(),
                              [](std::byte byte) { return byte != std::byte{0xff}; }));
    }
  }
}

// Partial keys of a sequence that comes back are made of its pages in the host pool.
TEST(TwinFp8PagesTest, PartialKeysAreThoseOfThePlainPage) {
  constexpr DType kType = DType::kBF16;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int d : {64, 128}) {
      const int channels = d / 4;
      SharedArray<std::byte> plain(*backend, RoundedPage(kType, d, 1));
      SharedArray<std::byte> fp8(*backend, Packed(kType, d, RoundedPage(kType, d, 1)));
      SharedArray<std::byte> open(*backend, RoundedPage(kType, d, 2));
      SharedArray<float> basis(*backend, RandomFloats(size_t(d) * d, 3));
      SharedArray<int32_t> columns(*backend, channels);
      for (int c = 0; c < channels; ++c) columns[c] = 4 * c + c % 3;
      std::vector<std::vector<std::byte>> partial;
      for (std::byte* const first : {plain.data(), fp8.data()}) {
        SharedArray<std::byte> target(*backend,
                                      size_t{kPartialPageBlocks} * kBlockTokens * channels * 2);
        std::fill_n(target.data(), target.size(), kUntouched);
        SharedArray<std::byte*> targets(*backend, std::vector<std::byte*>{target.data()});
        SharedArray<const std::byte*> pages(*backend,
                                            std::vector<const std::byte*>{first, open.data()});
        SharedArray<ProjectSegment> segments(*backend, 1);
        segments[0] = {.rows = {0, 87, 9},  // of both blocks, neither in whole
                       .pages = pages.data(),
                       .targets = targets.data(),
                       .target_stride = 1,
                       .channels = columns.data()};
        backend->ProjectKeys({.basis = basis.data(),
                              .segments = segments.data(),
                              .num_segments = 1,
                              .num_kv_heads = 1,
                              .head_dim = d,
                              .num_channels = channels,
                              .dtype = kType,
                              .fp8 = {fp8.data(), fp8.data() + fp8.size(), d, kType}});
        backend->Synchronize();
        partial.push_back(target.ToVector());
      }
      EXPECT_TRUE(partial[0] == partial[1]) << name << " d " << d;
      EXPECT_TRUE(std::any_of(partial[0].begin(), partial[0].end(),
                              [](std::byte byte) { return byte != kUntouched; }));
    }
  }
}

}  // namespace
}  // namespace augur::kernels
