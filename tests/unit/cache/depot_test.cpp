#include "depot.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace gpumem {
namespace {

constexpr std::uint64_t blocks = stream_cache::batch;

depot::batch numbers(slot_index from) {
  depot::batch out{};
  std::iota(out.begin(), out.end(), from);
  return out;
}

/// The first slot of each batch that `take_all` gives.
std::set<slot_index> drained(depot& d, owner_id only) {
  std::set<slot_index> out;
  d.take_all(only, [&out](owner_id, const depot::batch& b) { EXPECT_TRUE(out.insert(b.front()).second) << "twice"; });
  return out;
}

TEST(depot, has_nothing_at_first) {
  depot d;
  EXPECT_FALSE(d.holds(1, 4));
  EXPECT_TRUE(drained(d, idle_owner).empty());
  EXPECT_EQ(d.bytes(), 0U);
  EXPECT_EQ(d.held_blocks(), 0U);
  EXPECT_EQ(d.metadata_bytes(), 0U);
}

TEST(depot, hands_out_the_oldest_batch_of_that_owner_and_size) {
  depot d;
  ASSERT_TRUE(d.put(1, 4, numbers(100)));
  ASSERT_TRUE(d.put(1, 4, numbers(200)));
  ASSERT_TRUE(d.put(2, 4, numbers(300)));
  ASSERT_TRUE(d.put(1, 5, numbers(400)));
  EXPECT_EQ(d.held_blocks(), 4 * blocks);
  EXPECT_EQ(d.bytes(), 512 * blocks * (3 * 4 + 5));
  EXPECT_TRUE(d.holds(1, 4));
  EXPECT_FALSE(d.holds(3, 4));
  EXPECT_FALSE(d.holds(2, 5));
  EXPECT_EQ(d.take(1, 4).front(), 100U);
  ASSERT_TRUE(d.put(1, 4, numbers(500))) << "behind what is there";
  EXPECT_EQ(d.take(1, 4).back(), 200U + blocks - 1);
  EXPECT_EQ(d.take(1, 4).front(), 500U);
  EXPECT_FALSE(d.holds(1, 4));
  EXPECT_EQ(d.take(2, 4).front(), 300U);
  EXPECT_EQ(d.take(1, 5).front(), 400U);
  EXPECT_EQ(d.bytes(), 0U);
  EXPECT_EQ(d.held_blocks(), 0U);
  EXPECT_EQ(d.metadata_bytes(), 0U);
}

TEST(depot, holds_so_many_batches_and_no_more) {
  depot d;
  std::uint32_t taken = 0;
  while (d.put(1, 8, numbers(0))) {
    ++taken;
    ASSERT_LT(taken, 10'000U) << "no limit";
  }
  EXPECT_GT(taken, 1U);
  EXPECT_EQ(d.held_blocks(), taken * blocks);
  EXPECT_FALSE(d.put(2, 9, numbers(0))) << "of any owner and size";
  d.take(1, 8);
  EXPECT_TRUE(d.put(1, 8, numbers(0))) << "room again";
  EXPECT_FALSE(d.put(1, 8, numbers(0)));
}

TEST(depot, take_all_empties_an_owner_and_leaves_the_others) {
  depot d;
  slot_index next = 0;
  for (const std::uint32_t units : {1U, 2U, 128U, 129U, 5000U}) {
    for (const owner_id o : {owner_id{1}, owner_id{4}}) {
      ASSERT_TRUE(d.put(o, units, numbers(next++)));
    }
  }
  EXPECT_EQ(drained(d, 1), (std::set<slot_index>{0, 2, 4, 6, 8}));
  EXPECT_EQ(d.held_blocks(), 5 * blocks);
  EXPECT_TRUE(drained(d, 1).empty());
  EXPECT_EQ(drained(d, idle_owner), (std::set<slot_index>{1, 3, 5, 7, 9})) << "everybody's";
  EXPECT_EQ(d.bytes(), 0U);
}

TEST(depot, for_each_sees_every_batch) {
  depot d;
  ASSERT_TRUE(d.put(1, 3, numbers(0)));
  ASSERT_TRUE(d.put(1, 3, numbers(50)));
  ASSERT_TRUE(d.put(2, 9, numbers(90)));
  std::vector<slot_index> firsts;
  d.for_each([&](owner_id o, std::uint32_t units, const depot::batch& b) {
    EXPECT_EQ(units, o == 1 ? 3U : 9U);
    firsts.push_back(b.front());
  });
  EXPECT_EQ(firsts, (std::vector<slot_index>{0, 50, 90}));
}

}  // namespace
}  // namespace gpumem
