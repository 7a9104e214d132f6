#include "depot.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>
#include <vector>

namespace gpumem {
namespace {

std::array<block_index, depot::batch> numbers(block_index from) {
  std::array<block_index, depot::batch> out{};
  std::iota(out.begin(), out.end(), from);
  return out;
}

/// Everything of an owner, one after the other.
std::set<block_index> drained(depot& d, owner_id o) {
  std::set<block_index> out;
  for (depot::blocks b = d.take_any(o); !b.empty(); b = d.take_any(o)) {
    for (const slot_index i : b) EXPECT_TRUE(out.insert(i).second) << "twice";
  }
  return out;
}

TEST(depot, has_nothing_at_first) {
  depot d;
  EXPECT_EQ(d.take(1, 4).size(), 0U);
  EXPECT_EQ(d.take_any(7).size(), 0U);
  EXPECT_EQ(d.bytes(), 0U);
  EXPECT_EQ(d.held_blocks(), 0U);
  EXPECT_EQ(d.owners(), 0U);
}

TEST(depot, hands_out_the_oldest_batch_of_that_owner_and_size) {
  depot d;
  ASSERT_TRUE(d.put(1, 4, numbers(100).data(), depot::batch));
  ASSERT_TRUE(d.put(1, 4, numbers(200).data(), 3));
  ASSERT_TRUE(d.put(2, 4, numbers(300).data(), depot::batch));
  ASSERT_TRUE(d.put(1, 5, numbers(400).data(), depot::batch));
  EXPECT_EQ(d.held_blocks(), 3U * depot::batch + 3);
  EXPECT_EQ(d.bytes(), std::uint64_t{512} * ((2 * depot::batch + 3) * 4 + depot::batch * 5));

  EXPECT_TRUE(d.may_hold(4));
  EXPECT_TRUE(d.may_hold(5));
  EXPECT_FALSE(d.may_hold(6));
  EXPECT_EQ(d.take(3, 4).size(), 0U);
  EXPECT_TRUE(d.holds(1, 4));
  EXPECT_FALSE(d.holds(3, 4));
  EXPECT_FALSE(d.holds(2, 5));
  EXPECT_EQ(d.take(1, 6).size(), 0U);
  EXPECT_EQ(d.take(1, 4)[0], 100U);
  ASSERT_TRUE(d.put(1, 4, numbers(500).data(), depot::batch)) << "behind what is there";
  const depot::blocks second = d.take(1, 4);
  ASSERT_EQ(second.size(), 3U);
  EXPECT_EQ(second[0], 200U);
  EXPECT_EQ(second[2], 202U);
  EXPECT_EQ(d.take(1, 4)[0], 500U);
  EXPECT_EQ(d.take(1, 4).size(), 0U);
  EXPECT_EQ(d.take(2, 4)[0], 300U);
  EXPECT_FALSE(d.may_hold(4)) << "the last of that size, whose ever, is gone";
  EXPECT_EQ(d.take(1, 5)[0], 400U);
  EXPECT_EQ(d.bytes(), 0U);
  EXPECT_EQ(d.held_blocks(), 0U);
}

TEST(depot, holds_so_many_batches_of_one_size_and_no_more) {
  depot d;
  std::uint32_t taken = 0;
  while (d.put(1, 8, numbers(taken * depot::batch).data(), depot::batch)) {
    ++taken;
    ASSERT_LT(taken, 10'000U) << "no limit";
  }
  EXPECT_GT(taken, 1U);
  EXPECT_EQ(d.held_blocks(), std::uint64_t{taken} * depot::batch);
  EXPECT_TRUE(d.put(2, 8, numbers(0).data(), depot::batch)) << "another owner's place is another one";
  const std::uint64_t metadata = d.metadata_bytes();
  EXPECT_EQ(d.take(1, 8).size(), depot::batch);
  EXPECT_TRUE(d.put(1, 8, numbers(0).data(), depot::batch)) << "room again";
  EXPECT_EQ(d.metadata_bytes(), metadata) << "a place in memory is used again";
}

// Two sizes above 64 KiB that share a place: one at a time, and neither is ever given out as the other.
TEST(depot, sizes_that_share_a_place_take_turns) {
  constexpr std::uint32_t units = 1000;
  std::uint32_t other = units + 1;
  while (bin_places::of(other) != bin_places::of(units)) ++other;
  depot d;
  ASSERT_TRUE(d.put(1, units, numbers(0).data(), 2));
  EXPECT_FALSE(d.put(1, other, numbers(50).data(), 2));
  EXPECT_EQ(d.take(1, other).size(), 0U);
  EXPECT_EQ(d.take(1, units).size(), 2U);
  ASSERT_TRUE(d.put(1, other, numbers(50).data(), 2)) << "the place is free";
  EXPECT_EQ(d.take(1, units).size(), 0U);
  EXPECT_EQ(d.bytes(), std::uint64_t{2} * other * 512);
  EXPECT_EQ(d.take(1, other)[1], 51U);
}

TEST(depot, take_any_empties_an_owner_and_leaves_the_others) {
  depot d;
  block_index next = 0;
  for (const std::uint32_t units : {1U, 2U, 128U, 129U, 5000U}) {
    for (const owner_id o : {owner_id{1}, owner_id{4}}) {
      ASSERT_TRUE(d.put(o, units, numbers(next).data(), depot::batch));
      next += depot::batch;
    }
  }
  EXPECT_EQ(d.owners(), 5U);
  EXPECT_EQ(drained(d, 1).size(), 5U * depot::batch);
  EXPECT_EQ(d.held_blocks(), 5U * depot::batch);
  EXPECT_TRUE(drained(d, 0).empty());
  EXPECT_EQ(drained(d, 4).size(), 5U * depot::batch);
  EXPECT_EQ(d.bytes(), 0U);
}

TEST(depot, for_each_sees_every_batch) {
  depot d;
  ASSERT_TRUE(d.put(1, 3, numbers(0).data(), 5));
  ASSERT_TRUE(d.put(1, 3, numbers(20).data(), 6));
  ASSERT_TRUE(d.put(2, 9, numbers(40).data(), 7));
  std::uint64_t bytes = 0;
  std::vector<std::size_t> counts;
  d.for_each([&](owner_id o, std::uint32_t units, const depot::blocks& b) {
    EXPECT_EQ(units, o == 1 ? 3U : 9U);
    bytes += std::uint64_t{b.size()} * units * 512;
    counts.push_back(b.size());
  });
  EXPECT_EQ(bytes, d.bytes());
  EXPECT_EQ(counts, (std::vector<std::size_t>{5, 6, 7}));
}

}  // namespace
}  // namespace gpumem
