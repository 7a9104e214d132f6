#include "plan_matcher.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace gpumem::plan {
namespace {

/// A plan of one allocation for each size in units of 512, on stream 0, stacked.
std::shared_ptr<const step_plan> stacked(const std::vector<std::uint64_t>& sizes, std::uint32_t repeat_from = 0) {
  step_plan made;
  for (const std::uint64_t size : sizes) {
    made.allocations.push_back({.bytes = 512 * size, .offset = made.height_bytes});
    made.height_bytes += 512 * size;
  }
  made.repeat_from = repeat_from;
  return std::make_shared<const step_plan>(made);
}

/// Offsets in units of 512; -1 for a departure.
std::vector<int> offsets(plan_matcher& f, const std::vector<std::uint64_t>& sizes, std::uint64_t stream = 7) {
  std::vector<int> got;
  for (const std::uint64_t size : sizes) {
    const auto place = f.next(512 * size, stream);
    got.push_back(place ? static_cast<int>(f.offset(*place) / 512) : -1);
  }
  return got;
}

TEST(follower, gives_each_request_its_place_and_repeats_the_step_without_the_prologue) {
  plan_matcher f{stacked({10, 1, 2, 3}, 1)};
  EXPECT_EQ(offsets(f, {10, 1, 2, 3, 1, 2, 3, 1}), (std::vector<int>{0, 10, 11, 13, 10, 11, 13, 10}));
}

TEST(follower, costs_one_departure_for_what_is_inserted) {
  plan_matcher f{stacked({1, 2, 3, 4})};
  EXPECT_EQ(offsets(f, {1, 2, 9, 3, 4}), (std::vector<int>{0, 1, -1, 3, 6}));
}

TEST(follower, finds_its_way_again_after_what_is_left_out) {
  plan_matcher f{stacked({1, 2, 3, 4, 5, 6, 7, 8, 9})};
  // 3 is left out: 4, 5 and 6 are not expected, and 4 to 7 occur together only once.
  EXPECT_EQ(offsets(f, {1, 2, 4, 5, 6, 7, 8, 9, 1}), (std::vector<int>{0, 1, -1, -1, -1, 21, 28, 36, 0}));
}

TEST(follower, goes_on_at_the_next_of_several_places_that_look_alike) {
  plan_matcher f{stacked({1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 4, 7})};
  offsets(f, {1, 2, 3, 4});
  // The program leaves out 9. The next requests occur at two later places; the nearer one is right.
  EXPECT_EQ(offsets(f, {1, 2, 3, 4, 8}), (std::vector<int>{-1, -1, -1, 25, 29}));
}

TEST(follower, is_lost_after_many_departures_and_not_before) {
  plan_matcher f{stacked({1, 2, 3, 4})};
  for (int k = 0; k < 63; ++k) EXPECT_EQ(offsets(f, {99}), std::vector<int>{-1});
  EXPECT_FALSE(f.lost());
  EXPECT_EQ(offsets(f, {99}), std::vector<int>{-1});
  EXPECT_TRUE(f.lost());
  EXPECT_EQ(offsets(f, {1}), std::vector<int>{0});
  EXPECT_FALSE(f.lost());
}

TEST(follower, tells_streams_apart_by_their_order) {
  step_plan made = *stacked({1, 2, 3});
  made.allocations[1].stream = 1;
  plan_matcher f{std::make_shared<const step_plan>(made)};
  EXPECT_TRUE(f.next(512, 40));
  EXPECT_FALSE(f.next(1024, 40));
  EXPECT_TRUE(f.next(1024, 30));
  EXPECT_TRUE(f.next(1536, 40));
}

TEST(follower, knows_the_nearest_block_below_a_place) {
  plan_matcher f{stacked({1, 2, 3, 4})};
  EXPECT_EQ(f.placed_at_or_below(3), std::nullopt);
  f.placed(0, 100);
  f.placed(2, 7);
  EXPECT_EQ(f.placed_at_or_below(3), 7U);
  EXPECT_EQ(f.placed_at_or_below(1), 100U);
  f.ended(7);
  f.ended(7);
  f.ended(5000);
  EXPECT_EQ(f.placed_at_or_below(3), 100U);
}

TEST(rank_set, agrees_with_an_ordered_set) {
  constexpr std::uint32_t count = 300'000;
  rank_set fast{count};
  std::set<std::uint32_t> plain;
  std::mt19937 random{3};
  for (int k = 0; k < 200'000; ++k) {
    const auto rank = static_cast<std::uint32_t>(random() % count);
    if (random() % 3 == 0) {
      fast.add(rank);
      plain.insert(rank);
    } else if (random() % 2 == 0 && !plain.empty()) {
      const auto at = plain.lower_bound(rank);
      if (at == plain.end()) continue;
      fast.remove(*at);
      plain.erase(at);
    }
    const auto above = plain.upper_bound(rank);
    const auto expected = above == plain.begin() ? std::nullopt : std::optional{*std::prev(above)};
    ASSERT_EQ(fast.at_or_below(rank), expected) << k;
  }
}

}  // namespace
}  // namespace gpumem::plan
