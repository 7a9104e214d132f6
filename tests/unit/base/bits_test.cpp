#include "bits.hpp"

#include <gtest/gtest.h>

namespace gpumem {
namespace {

constexpr std::uint64_t most = UINT64_MAX;

TEST(Bits, PowersOfTwo) {
  EXPECT_FALSE(is_power_of_two(0));
  for (unsigned shift = 0; shift < 64; ++shift) {
    const std::uint64_t power = std::uint64_t{1} << shift;
    EXPECT_TRUE(is_power_of_two(power)) << power;
    if (shift > 1) {
      EXPECT_FALSE(is_power_of_two(power - 1)) << power;
      EXPECT_FALSE(is_power_of_two(power + 1)) << power;
    }
  }
}

TEST(Bits, RoundsToAnyMultiple) {
  for (const std::uint64_t multiple : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{512}, 2 * mib}) {
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, multiple - 1, multiple, multiple + 1, gib}) {
      const std::uint64_t up = round_up(value, multiple);
      const std::uint64_t down = round_down(value, multiple);
      EXPECT_EQ(up % multiple, 0U);
      EXPECT_EQ(down % multiple, 0U);
      EXPECT_TRUE(down <= value && value <= up && value - down < multiple && up - value < multiple)
          << value << " to a multiple of " << multiple << ": " << down << ", " << up;
      EXPECT_EQ(checked_round_up(value, multiple), up);
    }
  }
}

TEST(Bits, SaysWhenRoundingUpOverflows) {
  EXPECT_EQ(checked_round_up(most, 1), most);
  EXPECT_EQ(checked_round_up(most, 2), std::nullopt);
  EXPECT_EQ(checked_round_up(most - 511, 512), most - 511);
  EXPECT_EQ(checked_round_up(most - 510, 512), std::nullopt);
  EXPECT_EQ(checked_round_up(most - 512, 512), most - 511);
  EXPECT_EQ(checked_round_up(1, most), most);
  EXPECT_EQ(checked_round_up(most, most), most);
}

TEST(Bits, Units) {
  EXPECT_EQ(kib, 1024U);
  EXPECT_EQ(mib, kib * 1024);
  EXPECT_EQ(gib, mib * 1024);
  EXPECT_EQ(tib, gib * 1024);
}

}  // namespace
}  // namespace gpumem
