#include "kernels/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

double ValueOfF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(DtypeTest, EveryF16WidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = FloatFromF16(static_cast<uint16_t>(bits));
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(wide, ValueOfF16(static_cast<uint16_t>(bits))) << bits;
    } else if ((bits & 0x3ff) != 0) {
      ASSERT_TRUE(std::isnan(wide));
      ASSERT_EQ(F16FromFloat(wide), bits | 0x200);
      continue;
    } else {
      ASSERT_TRUE(std::isinf(wide));
    }
    ASSERT_EQ(F16FromFloat(wide), bits);
  }
}

TEST(DtypeTest, F16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = ValueOfF16(static_cast<uint16_t>(bits));
    const double high = ValueOfF16(static_cast<uint16_t>(bits + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: one more bit than fp16
    const uint32_t even = bits + (bits & 1);
    ASSERT_EQ(F16FromFloat(middle), even) << bits;
    ASSERT_EQ(F16FromFloat(-middle), even | 0x8000) << bits;
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(F16FromFloat(65519.996f), 0x7bff);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(F16FromFloat(1e30f), 0x7c00);
  EXPECT_EQ(F16FromFloat(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(F16FromFloat(1e-30f), 0);
}

TEST(DtypeTest, BF16RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(BF16FromFloat(1.0f), 0x3f80);
  EXPECT_EQ(BF16FromFloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, to even
  EXPECT_EQ(BF16FromFloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_TRUE(std::isnan(FloatFromBF16(BF16FromFloat(std::bit_cast<float>(0x7f800001u)))));
}

// The vector conversions give the scalar ones' bits, for any length.
TEST(DtypeTest, KernelsConvertAsTheHostDoes) {
  std::vector<uint16_t> halves(0x10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(0x10000);
  for (size_t i = 0; i < floats.size(); ++i) {
    floats[i] = std::bit_cast<float>(static_cast<uint32_t>(i * 65537u + 12345u * i));
  }
  for (const CpuIsa isa : IsasHere()) {
    const IsaKernels& kernels = KernelsFor(isa);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int count : {1, 3, 7, 8, 15, 16, 17, 31, 0x10000}) {
        std::vector<float> wide(count);
        kernels.widen(dtype, halves.data(), wide.data(), count);
        std::vector<uint16_t> narrow(count);
        kernels.narrow(dtype, floats.data(), narrow.data(), count);
        for (int i = 0; i < count; ++i) {
          const bool is_bf16 = dtype == DType::kBF16;
          const float expected = is_bf16 ? FloatFromBF16(halves[i]) : FloatFromF16(halves[i]);
          ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << i;
          ASSERT_EQ(narrow[i], is_bf16 ? BF16FromFloat(floats[i]) : F16FromFloat(floats[i])) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
