// Rows in fp8: the codes are the OCP format's, rounding is to nearest and stays, and packing what
// has been rounded loses nothing.
#include "kernels/fp8_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace augur::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// From the format's definition.
float ValueOf(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(8.0f + mantissa, exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

// The nearest code, the even one of two; values beyond 464 are not asked for.
int NearestCode(float value) {
  const int sign = std::signbit(value) ? 128 : 0;
  int best = sign;
  for (int code = sign; code < sign + 127; ++code) {
    const double distance = std::fabs(double{ValueOf(code)} - value);
    const double least = std::fabs(double{ValueOf(best)} - value);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

std::vector<std::byte> RowOf(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> row(values.size() * BytesOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits =
        dtype == DType::kBF16 ? BF16FromFloat(values[i]) : F16FromFloat(values[i]);
    if (dtype == DType::kF32) {
      std::memcpy(row.data() + 4 * i, &values[i], 4);
    } else {
      std::memcpy(row.data() + 2 * i, &bits, 2);
    }
  }
  return row;
}

std::vector<float> ValuesOf(DType dtype, const std::vector<std::byte>& row) {
  std::vector<float> values(row.size() / BytesOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, row.data() + 2 * i, 2);
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], row.data() + 4 * i, 4);
    } else {
      values[i] = dtype == DType::kBF16 ? FloatFromBF16(bits) : FloatFromF16(bits);
    }
  }
  return values;
}

std::vector<float> Rounded(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> row = RowOf(dtype, values);
  RoundRowToFp8(dtype, static_cast<int>(values.size()), row.data());
  return ValuesOf(dtype, row);
}

TEST(Fp8PageTest, CodesAreThoseOfTheFormat) {
  for (int code = 0; code < 256; ++code) {
    const float value = fp8::FloatFromE4M3(static_cast<uint8_t>(code));
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(fp8::E4M3FromFloat(value), fp8::kNaN);
      continue;
    }
    EXPECT_EQ(value, ValueOf(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(fp8::E4M3FromFloat(value), code);
  }
  EXPECT_EQ(ValueOf(126), 448.0f);
}

TEST(Fp8PageTest, RoundsToTheNearestCodeAndTiesToTheEvenOne) {
  std::vector<float> values = {464.0f, -464.0f, 1e-30f, -1e-30f, 1e-40f};
  for (int code = 0; code < 126; ++code) {
    const float middle = (ValueOf(code) + ValueOf(code + 1)) / 2;
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    values.push_back(
        std::ldexp(1.0f + random() % 8192 / 8192.0f, static_cast<int>(random() % 18) - 10));
  }
  for (const float value : values) {
    EXPECT_EQ(fp8::E4M3FromFloat(value), NearestCode(value)) << value;
  }
  EXPECT_EQ(fp8::E4M3FromFloat(1e9f), 126);
  EXPECT_EQ(fp8::E4M3FromFloat(-1e9f), 254);
  EXPECT_EQ(fp8::E4M3FromFloat(kInfinity), fp8::kNaN);
}

// Of normal codes half a step is at most 2^-4 of the value, below them 2^-10 of the row's scale.
TEST(Fp8PageTest, ARowIsRoundedToItsLargestValuesScale) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const DType dtype : kTypes) {
    for (int trial = 0; trial < 300; ++trial) {
      std::vector<float> values(64);
      for (float& value : values) value = std::ldexp(normal(random), trial % 20 - 10);
      values = ValuesOf(dtype, RowOf(dtype, values));
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::fabs(value));
      const std::vector<float> rounded = Rounded(dtype, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const float bound = std::max(std::fabs(values[i]) / 16, largest / 240.0f / 1024.0f);
        EXPECT_LE(std::fabs(rounded[i] - values[i]), bound);
      }
      EXPECT_EQ(Rounded(dtype, rounded), rounded) << "once is enough";
    }
  }
}

TEST(Fp8PageTest, ExtremesStayWhatTheyAre) {
  for (const DType dtype : kTypes) {
    const float most = dtype == DType::kF16 ? 65504.0f : 3.3e38f;
    const float least = dtype == DType::kF16 ? 0x1p-24f : 0x1p-126f;
    const std::vector<float> large = Rounded(dtype, {most, -most, 1.0f, 0.0f});
    EXPECT_GE(large[0], most / 1.2f);
    EXPECT_TRUE(std::isfinite(large[0])) << "largest";
    EXPECT_EQ(large[1], -large[0]);
    const std::vector<float> small = Rounded(dtype, {least, -least, 0.0f, -0.0f});
    EXPECT_EQ(small[0], least) << NameOf(dtype);
    EXPECT_EQ(small[1], -least);
    EXPECT_FALSE(std::signbit(small[2]));
    EXPECT_TRUE(std::signbit(small[3]));
    // What is broken stays visible and breaks nothing beside it.
    const std::vector<float> broken = Rounded(dtype, {NAN, 3.0f, kInfinity, -kInfinity, -1.5f});
    EXPECT_TRUE(std::isnan(broken[0]));
    EXPECT_EQ(broken[1], 3.0f);
    EXPECT_TRUE(std::isnan(broken[2]));
    EXPECT_TRUE(std::isnan(broken[3]));
    EXPECT_EQ(broken[4], -1.5f);
  }
}

// A page of `dtype` of any bits: most rows are numbers, some are what lay there before.
std::vector<std::byte> AnyHalf(DType dtype, int head_dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> half(size_t(kBlockTokens) * head_dim * BytesOf(dtype));
  for (std::byte& byte : half) byte = static_cast<std::byte>(random());
  return half;
}

TEST(Fp8PageTest, PackingRoundedRowsIsExactAndPackingRepeatsItself) {
  for (const DType dtype : kTypes) {
    for (const int head_dim : {6, 16, 64, 128}) {
      const size_t row_bytes = head_dim * BytesOf(dtype);
      std::vector<std::byte> half = AnyHalf(dtype, head_dim, 3);
      std::vector<std::byte> packed(Fp8HalfBytes(head_dim)), again(packed), back(half.size());
      PackHalfPage(dtype, head_dim, half.data(), packed.data());
      UnpackHalfPage(dtype, head_dim, packed.data(), back.data());
      PackHalfPage(dtype, head_dim, back.data(), again.data());
      EXPECT_EQ(again, packed) << NameOf(dtype) << " " << head_dim;
      for (int t = 0; t < kBlockTokens; ++t) {
        RoundRowToFp8(dtype, head_dim, half.data() + t * row_bytes);
      }
      EXPECT_EQ(back, half) << "what is read from the host is what was appended";
      std::vector<std::byte> row(row_bytes);
      UnpackRow(dtype, head_dim, packed.data(), 37, row.data());
      EXPECT_EQ(std::memcmp(row.data(), half.data() + 37 * row_bytes, row_bytes), 0);
    }
  }
}

TEST(Fp8PageTest, APageOf128IsHalfAsLong) {
  EXPECT_EQ(Fp8PageBytes(128), 16384u + 128u);
  const Fp8Pages pages{.head_dim = 128, .dtype = DType::kBF16};
  EXPECT_EQ(pages.plain_bytes(Fp8PageBytes(128)), 32768u);
  EXPECT_EQ(pages.fp8_bytes(32768), Fp8PageBytes(128));
  EXPECT_EQ(pages.fp8_bytes(16384), Fp8HalfBytes(128));
  EXPECT_EQ(Fp8Pages{}.fp8_bytes(32768), 0u);
}

}  // namespace
}  // namespace augur::kernels
