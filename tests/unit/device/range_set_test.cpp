// range_set against a plain array of bytes.
#include "range_set.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace gpumem {
namespace {

TEST(RangeSet, JoinsNeighboursThatTouch) {
  range_set set;
  set.insert(10, 20);
  set.insert(30, 40);
  EXPECT_FALSE(set.covers(10, 40));
  set.insert(20, 30);
  EXPECT_TRUE(set.covers(10, 40));
  EXPECT_FALSE(set.covers(9, 40));
  EXPECT_FALSE(set.covers(10, 41));
  EXPECT_FALSE(set.covers(10, 10));  // an empty range is in no set
}

TEST(RangeSet, EraseSplitsARange) {
  range_set set;
  set.insert(0, 100);
  set.erase(40, 60);
  EXPECT_TRUE(set.covers(0, 40));
  EXPECT_TRUE(set.covers(60, 100));
  EXPECT_FALSE(set.covers(39, 41));
  EXPECT_FALSE(set.covers(59, 61));
}

TEST(RangeSet, FirstFitIsTheLowestAlignedAddress) {
  range_set set;
  set.insert(3, 10);
  set.insert(20, 60);
  EXPECT_EQ(set.first_fit(2, 8), 8U);
  EXPECT_EQ(set.first_fit(7, 1), 3U);
  EXPECT_EQ(set.first_fit(8, 8), 24U);
  EXPECT_EQ(set.first_fit(36, 8), 24U);
  EXPECT_EQ(set.first_fit(37, 8), std::nullopt);
}

TEST(RangeSet, AgreesWithBytes) {
  constexpr std::size_t size = 64;
  std::mt19937 random{7};
  range_set set;
  std::array<bool, size> bytes{};
  for (int step = 0; step < 20'000; ++step) {
    const auto begin = static_cast<std::size_t>(random() % size);
    const auto end = begin + 1 + static_cast<std::size_t>(random() % (size - begin));
    const bool put = random() % 2 == 0;
    bool overlaps = false;
    for (std::size_t i = begin; i < end; ++i) overlaps = overlaps || bytes[i];
    if (put && overlaps) continue;
    put ? set.insert(begin, end) : set.erase(begin, end);
    for (std::size_t i = begin; i < end; ++i) bytes[i] = put;

    const auto from = static_cast<std::size_t>(random() % size);
    const auto to = from + 1 + static_cast<std::size_t>(random() % (size - from));
    bool all = true;
    for (std::size_t i = from; i < to; ++i) all = all && bytes[i];
    ASSERT_EQ(set.covers(from, to), all) << "step " << step << ", [" << from << ", " << to << ")";
  }
}

}  // namespace
}  // namespace gpumem
