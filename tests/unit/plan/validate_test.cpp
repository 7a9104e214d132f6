#include "validate.hpp"

#include <gtest/gtest.h>

#include "random_problem.hpp"

namespace gpumem::plan {
namespace {

/// Checks every pair, by the definition.
bool right(const problem& buffers, const placement& at, std::uint64_t capacity) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (at[i] + buffers[i].size > capacity || at[i] % buffers[i].alignment != 0) return false;
    for (std::size_t k = 0; k < i; ++k) {
      const bool together = buffers[i].lower < buffers[k].upper && buffers[k].lower < buffers[i].upper;
      if (together && at[i] < at[k] + buffers[k].size && at[k] < at[i] + buffers[i].size) return false;
    }
  }
  return true;
}

TEST(validate, agrees_with_the_definition_on_random_placements) {
  std::mt19937_64 random{5};
  unsigned good = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const problem buffers = random_problem(seed, 2 + seed % 5, 8);
    placement at;
    for (std::size_t i = 0; i < buffers.size(); ++i) at.push_back(8 * (random() % 256));
    const bool expected = right(buffers, at, 2048);
    EXPECT_EQ(validate(buffers, at, 2048).ok(), expected) << seed;
    good += expected ? 1 : 0;
  }
  EXPECT_GT(good, 200U);
  EXPECT_LT(good, 1800U);
}

TEST(validate, names_the_two_that_overlap) {
  const problem buffers{{.id = 7, .lower = 0, .upper = 4, .size = 10}, {.id = 9, .lower = 3, .upper = 5, .size = 10}};
  EXPECT_TRUE(validate(buffers, {0, 10}, 20));
  const status wrong = validate(buffers, {0, 9}, 20);
  EXPECT_EQ(wrong.code(), errc::corrupt);
  EXPECT_EQ(wrong.message(), "buffers 7 at 0 and 9 at 9 are alive at the same time and overlap");
  EXPECT_EQ(validate(buffers, {0, 11}, 20).message(), "buffer 9 at 11 with 10 bytes ends above 20");
  EXPECT_EQ(validate(buffers, {0}, 20).message(), "1 offsets for 2 buffers");
}

TEST(validate, lets_a_buffer_take_a_place_at_the_moment_when_another_leaves_it) {
  const problem buffers{{.id = 0, .lower = 0, .upper = 4, .size = 10}, {.id = 1, .lower = 4, .upper = 5, .size = 10}};
  EXPECT_TRUE(validate(buffers, {0, 0}, 10));
}

TEST(validate, knows_alignment) {
  const problem buffers{{.id = 3, .lower = 0, .upper = 4, .size = 10, .alignment = 8}};
  EXPECT_EQ(validate(buffers, {4}, 20).message(), "buffer 3 at 4 is not aligned to 8");
}

}  // namespace
}  // namespace gpumem::plan
