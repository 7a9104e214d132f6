#include "flat_map.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

namespace gpumem {
namespace {

TEST(FlatMap, FindsNothingInAnEmptyOne) {
  const flat_map m;
  EXPECT_EQ(m.find(0), flat_map::none);
  EXPECT_EQ(m.find(UINT64_MAX), flat_map::none);
  EXPECT_EQ(m.size(), 0U);
}

TEST(FlatMap, KeepsKeysThatLookLikeNothing) {
  flat_map m;
  m.insert(0, 0);
  m.insert(UINT64_MAX, 7);
  EXPECT_EQ(m.find(0), 0U);
  EXPECT_EQ(m.find(UINT64_MAX), 7U);
  m.erase(0);
  EXPECT_EQ(m.find(0), flat_map::none);
  EXPECT_EQ(m.find(UINT64_MAX), 7U);
  EXPECT_EQ(m.size(), 1U);
}

TEST(FlatMap, EraseOfWhatIsNotInItChangesNothing) {
  flat_map m;
  m.insert(3, 30);
  m.erase(4);
  m.erase(0);  // the key of a slot that was never used
  EXPECT_EQ(m.size(), 1U);
  EXPECT_EQ(m.find(3), 30U);
}

TEST(FlatMap, GrowsAndThenNeverAgain) {
  flat_map m;
  const std::uint64_t at_first = m.bytes();
  for (std::uint32_t k = 0; k < 1000; ++k) m.insert(std::uint64_t{k} << 32, k);
  const std::uint64_t grown = m.bytes();
  EXPECT_GT(grown, at_first);
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (std::uint32_t k = 0; k < 1000; ++k) m.erase(std::uint64_t{k} << 32);
    EXPECT_EQ(m.size(), 0U);
    for (std::uint32_t k = 0; k < 1000; ++k) m.insert(std::uint64_t{k} << 32, k + round);
  }
  EXPECT_EQ(m.bytes(), grown) << "deletion leaves no tombstones";
  for (std::uint32_t k = 0; k < 1000; ++k) ASSERT_EQ(m.find(std::uint64_t{k} << 32), k + 19);
}

// Few keys in a small table, so that runs of neighbours wrap around its end and are erased from their middle.
TEST(FlatMap, AgreesWithAnotherMapUnderRandomUse) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random{seed};
    std::vector<std::uint64_t> keys(40);
    for (std::uint64_t& k : keys) k = random() >> (random() % 64);
    flat_map m;
    std::unordered_map<std::uint64_t, std::uint32_t> expected;
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t key = keys[random() % keys.size()];
      if (expected.size() < 7 && expected.find(key) == expected.end()) {
        const auto value = static_cast<std::uint32_t>(random() % 1000);
        m.insert(key, value);
        expected[key] = value;
      } else {
        m.erase(key);
        expected.erase(key);
      }
      ASSERT_EQ(m.size(), expected.size());
      for (const std::uint64_t k : keys) {
        const auto found = expected.find(k);
        ASSERT_EQ(m.find(k), found == expected.end() ? flat_map::none : found->second)
            << "key " << k << ", seed " << seed << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace gpumem
