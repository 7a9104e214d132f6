#include "solve.hpp"

#include <gtest/gtest.h>

#include "random_problem.hpp"
#include "validate.hpp"

namespace gpumem::plan {
namespace {

using namespace std::chrono_literals;

TEST(solve, packs_a_cut_rectangle_without_a_byte_to_spare) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const problem buffers = cut_rectangle(seed, 60, 1 << 20, 10'000);
    const auto found = solve(buffers, {.capacity = 1 << 20});
    ASSERT_TRUE(found) << found.why().message();
    EXPECT_EQ(found->height, 1U << 20U) << seed;
    EXPECT_EQ(found->lower_bound, 1U << 20U);
    const status ok = validate(buffers, found->offsets, found->height);
    EXPECT_TRUE(ok) << ok.message();
  }
}

TEST(solve, raises_the_bound_above_the_peak_where_that_cannot_be_reached) {
  // The large ones at both ends leave the middle one only places above or between them.
  const problem buffers{{.id = 0, .lower = 0, .upper = 2, .size = 4}, {.id = 1, .lower = 1, .upper = 4, .size = 3},
                        {.id = 2, .lower = 3, .upper = 6, .size = 4}, {.id = 3, .lower = 5, .upper = 8, .size = 3},
                        {.id = 4, .lower = 7, .upper = 9, .size = 4}, {.id = 5, .lower = 0, .upper = 1, .size = 3},
                        {.id = 6, .lower = 2, .upper = 3, .size = 4}};
  const auto found = solve(buffers, {.time_limit = 5s});
  ASSERT_TRUE(found);
  EXPECT_LE(found->peak.bytes, found->lower_bound);
  EXPECT_EQ(found->height, found->lower_bound);
}

TEST(solve, ends_after_its_steps_whatever_the_clock_says) {
  const problem buffers = random_problem(12, 300);
  const solve_options some{.time_limit = std::chrono::hours{1}, .most_steps = 100'000, .tolerance = 0};
  const auto once = solve(buffers, some);
  const auto twice = solve(buffers, some);
  ASSERT_TRUE(once);
  ASSERT_TRUE(twice);
  EXPECT_EQ(once->offsets, twice->offsets);
  EXPECT_LT(once->took, std::chrono::seconds{30});
  const auto more = solve(buffers, {.time_limit = std::chrono::hours{1}, .most_steps = 3'000'000, .tolerance = 0});
  ASSERT_TRUE(more);
  EXPECT_LE(more->height, once->height);
}

TEST(solve, is_deterministic) {
  const problem buffers = random_problem(12, 300);
  const auto once = solve(buffers, {.capacity = peak_load(buffers).bytes * 21 / 20});
  const auto twice = solve(buffers, {.capacity = peak_load(buffers).bytes * 21 / 20});
  ASSERT_TRUE(once);
  ASSERT_TRUE(twice);
  EXPECT_EQ(once->offsets, twice->offsets);
}

TEST(solve, has_a_right_answer_even_without_time) {
  const problem buffers = cut_rectangle(2, 400, 1 << 20, 10'000);
  const auto found = solve(buffers, {.time_limit = 0ms});
  ASSERT_TRUE(found);
  const status ok = validate(buffers, found->offsets, found->height);
  EXPECT_TRUE(ok) << ok.message();
}

TEST(solve, refuses_what_cannot_fit_and_what_is_no_problem) {
  const problem buffers{{.id = 0, .lower = 0, .upper = 5, .size = 60}, {.id = 1, .lower = 4, .upper = 9, .size = 50}};
  EXPECT_EQ(solve(buffers, {.capacity = 100}).code(), errc::out_of_memory);
  EXPECT_EQ(solve(buffers, {.capacity = 100}).why().message(),
            "at time 4 buffers of 110 bytes are alive, more than the capacity of 100");
  EXPECT_EQ(solve({{.id = 0, .lower = 2, .upper = 1, .size = 1}}).code(), errc::invalid_argument);
  EXPECT_TRUE(solve({}));
}

}  // namespace
}  // namespace gpumem::plan
