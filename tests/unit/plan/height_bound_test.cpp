#include "height_bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "gap_fill.hpp"
#include "random_problem.hpp"
#include "solve.hpp"

namespace gpumem::plan {
namespace {

using namespace std::chrono_literals;

// Tries every order: an optimal placement whose buffers fall as low as possible results from one of them.
std::uint64_t least_height(const problem& buffers) {
  const sections cut = cut_into_sections(buffers);
  gap_fill filler{buffers, cut};
  std::vector<std::uint32_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0U);
  std::uint64_t least = UINT64_MAX;
  do {
    least = std::min(least, height(buffers, filler.place(order, fit::lowest)));
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

std::uint64_t bound_of(const problem& buffers, std::uint64_t reached) {
  search_budget budget{search_budget::clock::now() + 10s};
  return raised_bound(buffers, {peak_load(buffers).bytes, reached}, 0, budget).bytes;
}

// Each overlaps the next ones; some stay all the time, or from some moment on. With so few, hardly any need more than
// the peak load except for alignment.
problem chain(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  problem made;
  for (std::uint64_t i = 0; i < 7; ++i) {
    made.push_back({.id = i,
                    .lower = 2 * i,
                    .upper = 2 * i + 5,
                    .size = (i % 2 == 0 ? 5 : 2) + random() % 3,
                    .alignment = seed % 2 == 0 ? 1 : std::uint64_t{1} << random() % 3});
  }
  if (seed % 3 == 1) made[0].upper = 20;
  if (seed % 3 == 2) made[6].lower = 1;
  return made;
}

TEST(height_bound, is_what_every_order_proves_for_small_problems) {
  unsigned above_the_peak = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const problem buffers = chain(seed);
    const std::uint64_t least = least_height(buffers);
    const std::uint64_t bound = bound_of(buffers, least + 5);
    EXPECT_EQ(bound, least) << seed;
    if (bound > peak_load(buffers).bytes) ++above_the_peak;
  }
  EXPECT_GE(above_the_peak, 5U);
}

TEST(height_bound, is_never_above_what_fits) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const problem buffers = cut_rectangle(seed, 80, 1 << 16, 1'000);
    EXPECT_EQ(bound_of(buffers, 1 << 17), 1U << 16U) << seed;
  }
}

// Two sizes alternate, each new one before the oldest is freed, so every place must be as large as the larger one.
// Small ones that came one by one stay, in none of these places.
problem turns(unsigned stay, unsigned turns, std::uint64_t large, std::uint64_t small) {
  problem made;
  for (std::uint64_t i = 0; i < stay; ++i) {
    made.push_back({.id = i, .lower = i, .upper = 1000, .size = 7 + i % 3});
  }
  for (std::uint64_t i = 0; i < turns; ++i) {
    const std::uint64_t lower = stay + 2 * i;
    made.push_back({.id = stay + i, .lower = lower, .upper = lower + 5, .size = i % 2 == 0 ? large : small});
  }
  return made;
}

TEST(height_bound, adds_what_stays_to_what_takes_turns) {
  const problem buffers = turns(60, 20, 14'000, 11'000);
  std::uint64_t stays = 0;
  for (const buffer& each : buffers) stays += each.size < 100 ? each.size : 0;
  EXPECT_EQ(peak_load(buffers).bytes, stays + 39'000);
  EXPECT_EQ(bound_of(buffers, stays + 60'000), stays + 42'000);
}

TEST(height_bound, ends_a_search_that_has_nothing_left_to_find) {
  const auto found = solve(turns(60, 20, 14'000, 11'000), {.time_limit = 20s});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->height, found->lower_bound);
  EXPECT_LT(found->took, 20s) << "the time limit";
}

// The alternation begins at 5 and ends at 48; the time before and after proves nothing.
TEST(height_bound, says_which_moments_prove_that_a_capacity_is_too_small) {
  const problem buffers = turns(5, 20, 14'000, 11'000);
  std::uint64_t stays = 0;
  for (const buffer& each : buffers) stays += each.size < 100 ? each.size : 0;
  // One byte less, and by amounts that are no multiples of the sizes' common divisor.
  for (const std::uint64_t less : {1U, 500U, 1700U}) {
    const std::uint64_t next = stays + 42'000 - less;
    search_budget budget{search_budget::clock::now() + 60s};
    EXPECT_GT(raised_bound(buffers, {next, next + 1}, 0, budget).bytes, next) << less;
  }
  const auto found = solve(buffers, {.capacity = stays + 41'999, .time_limit = 60s});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->lower_bound, stays + 42'000);
  EXPECT_GE(found->height, found->lower_bound);
  EXPECT_GE(found->proof.lower, 5U);
  EXPECT_LE(found->proof.upper, 48U);
  EXPECT_LT(found->proof.lower, found->proof.upper);
}

TEST(height_bound, is_what_is_known_where_there_is_no_time) {
  const problem buffers = turns(60, 20, 14'000, 11'000);
  search_budget budget{search_budget::clock::now()};
  const proven_height got = raised_bound(buffers, {peak_load(buffers).bytes, 100'000}, 0, budget);
  EXPECT_EQ(got.bytes, peak_load(buffers).bytes);
  EXPECT_EQ(got.during.lower, got.during.upper);
}

}  // namespace
}  // namespace gpumem::plan
