#include "kernels/philox.h"

#include <gtest/gtest.h>

namespace augur::kernels {
namespace {

// kat_vectors of Random123 1.14, philox 4x32 10.
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformStaysBelowOneAndVariesWithEveryInput) {
  const auto draw = [](uint64_t seed, uint32_t choice, uint32_t position) {
    return PhiloxUniform(PhiloxPurpose::kSampleToken, seed, choice, position);
  };
  double sum = 0.0;
  for (uint32_t i = 0; i < 10000; ++i) {
    const double u = draw(1, 2, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_NE(draw(1, 0, 0), draw(2, 0, 0));
  EXPECT_NE(draw(1, 0, 0), draw(1 + (uint64_t{1} << 32), 0, 0));
  EXPECT_NE(draw(1, 0, 0), draw(1, 1, 0));
  EXPECT_NE(draw(1, 0, 1), draw(1, 1, 0));
}

}  // namespace
}  // namespace augur::kernels
