#include "proto/lossgauge/ring/fixed128.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace lossgauge::ring {
namespace {

__int128 Steps(lg_fixed128 value) {
  return static_cast<__int128>(static_cast<unsigned __int128>(static_cast<std::uint64_t>(value.hi)) << 64 | value.lo);
}
lg_fixed128 OfSteps(__int128 steps) {
  return lg_fixed128_make(static_cast<std::int64_t>(steps >> 64), static_cast<std::uint64_t>(steps));
}

TEST(Fixed128, ConvertsRandomValuesLikeThe128BitInteger) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300000; ++i) {
    const int shift = static_cast<int>(random() % 128);
    __int128 steps = static_cast<__int128>((static_cast<unsigned __int128>(random()) << 64 | random()) >> shift);
    if (random() % 2 == 0) steps = static_cast<__int128>(-static_cast<unsigned __int128>(steps));
    const double expected = std::ldexp(static_cast<double>(steps), -64);
    const double converted = lg_fixed128_to_double(OfSteps(steps));
    ASSERT_EQ(converted, expected);
    if (std::abs(expected) < 0x1p63) {
      ASSERT_EQ(Steps(lg_fixed128_from_double(expected)), static_cast<__int128>(std::ldexp(expected, 64)));
    }
  }
}

TEST(Fixed128, RoundsToTheNearestStepAndTiesToEven) {
  EXPECT_EQ(Steps(lg_fixed128_from_double(0x1p-64)), 1);
  EXPECT_EQ(Steps(lg_fixed128_from_double(0x1p-65)), 0);
  EXPECT_EQ(Steps(lg_fixed128_from_double(0x1.8p-64)), 2);
  EXPECT_EQ(Steps(lg_fixed128_from_double(0x1.4p-63)), 2);
  EXPECT_EQ(Steps(lg_fixed128_from_double(-0x1.8p-64)), -2);
  EXPECT_EQ(Steps(lg_fixed128_from_double(0x1.00001p-65)), 1);
  EXPECT_EQ(Steps(lg_fixed128_from_double(std::numeric_limits<double>::denorm_min())), 0);
}

TEST(Fixed128, EndsOfTheRangeSaturateAndNanIsNothing) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(lg_fixed128_to_double(lg_fixed128_from_double(infinity)), 0x1p63);
  EXPECT_EQ(lg_fixed128_to_double(lg_fixed128_from_double(-infinity)), -0x1p63);
  EXPECT_EQ(lg_fixed128_to_double(lg_fixed128_from_double(1e300)), 0x1p63);
  EXPECT_EQ(Steps(lg_fixed128_from_double(std::nan(""))), 0);
}

TEST(Fixed128, SumsDoNotDependOnTheirOrder) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(-20, 20);
  std::vector<double> terms(5000);
  for (double& term : terms) term = uniform(random);
  const auto sum = [&terms] {
    lg_fixed128 total{};
    for (const double term : terms) total = lg_fixed128_add(total, lg_fixed128_from_double(term));
    return total;
  };
  const lg_fixed128 before = sum();
  std::shuffle(terms.begin(), terms.end(), random);
  EXPECT_EQ(lg_fixed128_compare(before, sum()), 0);
}

TEST(Fixed128, ComparesAndSubtractsExactly) {
  const lg_fixed128 one = lg_fixed128_from_int64(1);
  const lg_fixed128 above = lg_fixed128_make(1, 1);
  EXPECT_EQ(lg_fixed128_compare(one, above), -1);
  EXPECT_EQ(lg_fixed128_compare(above, one), 1);
  EXPECT_EQ(lg_fixed128_compare(lg_fixed128_negate(one), one), -1);
  EXPECT_EQ(Steps(lg_fixed128_subtract(above, one)), 1);
  EXPECT_EQ(Steps(lg_fixed128_subtract(one, above)), -1);
}

}  // namespace
}  // namespace lossgauge::ring
