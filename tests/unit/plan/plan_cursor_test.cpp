// Where a plan puts a request, over a heap made by hand.
#include "plan_cursor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t base = 64 * mib;

/// Three allocations of one stream, one above the other: 4, 2 and 2 units of 512.
std::shared_ptr<const plan::step_plan> three() {
  plan::step_plan made;
  for (const std::uint64_t units : {4U, 2U, 2U}) {
    made.allocations.push_back({.bytes = 512 * units, .offset = made.height_bytes});
    made.height_bytes += 512 * units;
  }
  return std::make_shared<const plan::step_plan>(made);
}

struct planned_heap {
  heap blocks{2};
  plan_cursor places{three()};
  owner_id one = blocks.add_owner();
  owner_id two = blocks.add_owner();
  planned_heap() { blocks.add_segment(base, 8 * 512, 0); }
  block_index take(std::uint64_t begin, std::uint64_t units, owner_id o) {
    const block_index i = blocks.carve_at(blocks.containing(base + begin), base + begin, 512 * units, o);
    blocks.at(i).owner = o;
    return i;
  }
};

TEST(planned, without_a_plan_follows_nothing) {
  plan_cursor p{nullptr};
  EXPECT_FALSE(p.follows());
  EXPECT_FALSE(p.ended(0));
  EXPECT_EQ(p.metadata_bytes(), 0U);
}

TEST(planned, gives_each_request_its_place_in_the_segment_of_class_0_that_is_large_enough) {
  heap h{2};
  h.add_segment(base, 8 * 512, 1);
  h.add_segment(base + mib, 7 * 512, 0);
  plan_cursor p{three()};
  EXPECT_TRUE(p.follows());
  EXPECT_FALSE(p.next(h, 4 * 512, 7)) << "no segment holds the plan";
  h.add_segment(base + 2 * mib, 8 * 512, 0);
  const auto second = p.next(h, 2 * 512, 7);
  ASSERT_TRUE(second) << "the plan has moved on meanwhile";
  EXPECT_EQ(second->begin, base + 2 * mib + 4 * 512);
  EXPECT_FALSE(p.next(h, 9 * 512, 7)) << "a departure";
  EXPECT_FALSE(p.lost());
  EXPECT_GT(p.metadata_bytes(), 0U);
}

TEST(planned, finds_the_free_blocks_that_a_place_touches_and_whose_they_are) {
  planned_heap x;
  const block_index low = x.take(0, 2, x.one);
  const block_index high = x.take(2 * 512, 2, x.two);
  const block_index top = x.take(4 * 512, 4, x.one);
  x.blocks.release(low, x.one, 1, false);
  x.blocks.release(high, x.two, 1, false);
  const auto place = x.places.next(x.blocks, 4 * 512, 7);
  ASSERT_TRUE(place);
  const plan_cursor::blocks both = x.places.find(x.blocks, *place, 4 * 512, x.one);
  EXPECT_EQ(both.first, low);
  EXPECT_TRUE(both.several);
  EXPECT_THAT(both.other_owners, testing::ElementsAre(plan_cursor::other{x.two, 1}))
      << "the request's own owner is none of them";
  const plan_cursor::blocks nobodys = x.places.find(x.blocks, *place, 4 * 512, idle_owner);
  EXPECT_THAT(nobodys.other_owners, testing::ElementsAre(plan_cursor::other{x.one, 1}, plan_cursor::other{x.two, 1}));
  const auto above = x.places.next(x.blocks, 2 * 512, 7);
  ASSERT_TRUE(above);
  EXPECT_EQ(x.places.find(x.blocks, *above, 2 * 512, x.one).first, no_block) << "in use";
  x.blocks.release(top, x.one, 1, true);
  EXPECT_EQ(x.places.find(x.blocks, *above, 2 * 512, x.one).first, top);
  EXPECT_FALSE(x.places.find(x.blocks, *above, 2 * 512, x.one).several);
}

TEST(planned, searches_from_the_block_placed_below_until_that_is_gone) {
  planned_heap x;
  const auto low = x.places.next(x.blocks, 4 * 512, 7);
  const block_index i = x.take(0, 4, x.one);
  x.places.placed(*low, i);
  const auto above = x.places.next(x.blocks, 2 * 512, 7);
  EXPECT_EQ(x.places.find(x.blocks, *above, 2 * 512, x.one).first, x.blocks.at(i).next);
  EXPECT_FALSE(x.places.ended(i)) << "the plan has one stream only";
  x.blocks.release(i, idle_owner, 0, true);
  EXPECT_EQ(x.places.find(x.blocks, *above, 2 * 512, x.one).first, x.blocks.containing(base));
}

}  // namespace
}  // namespace gpumem
