#include "returning_sizes.hpp"

#include <gtest/gtest.h>

namespace gpumem {
namespace {

TEST(returning_sizes, a_size_returns_once_it_was_freed_and_asked_for) {
  returning_sizes r;
  r.asked(7);
  EXPECT_FALSE(r.freed(7)) << "asked for before it was ever freed";
  EXPECT_FALSE(r.freed(7));
  r.asked(7);
  EXPECT_TRUE(r.freed(7));
  EXPECT_FALSE(r.freed(8)) << "another one";
  r.unused(7);
  EXPECT_FALSE(r.freed(7)) << "what lay unused has to come back anew";
}

/// How often of `times` a free of that size would be kept on condition.
int kept_of(returning_sizes& r, std::uint32_t units, int times, bool in_vain) {
  int kept = 0;
  for (int i = 0; i < times; ++i) {
    static_cast<void>(r.freed(units));
    if (!r.worth_keeping(units)) continue;
    ++kept;
    r.kept(units, in_vain);
  }
  return kept;
}

// A block that is kept and goes back unused costs about as much as a third of what a hit saves.
TEST(returning_sizes, a_size_that_is_kept_in_vain_is_kept_an_eighth_as_often) {
  returning_sizes r;
  const int at_first = kept_of(r, 5000, 800, true);
  EXPECT_GE(at_first, 100) << "tried again and again";
  EXPECT_LE(at_first, 110);
  EXPECT_EQ(kept_of(r, 5000, 80, true), 10);

  EXPECT_EQ(kept_of(r, 6000, 50, false), 50) << "another size, which is asked for again";
  EXPECT_GE(kept_of(r, 6000, 24, true), 12) << "some bad luck is no reason";
}

TEST(returning_sizes, one_hit_gives_a_size_several_chances) {
  returning_sizes r;
  static_cast<void>(kept_of(r, 5000, 800, true));
  int passed_over = 0;
  while (!r.worth_keeping(5000)) ++passed_over;
  EXPECT_LT(passed_over, 8);
  r.kept(5000, false);
  EXPECT_EQ(kept_of(r, 5000, 4, true), 4);
}

// Two sizes of one place: the latest freed is known, and what is told of the other one is not taken for it.
TEST(returning_sizes, what_is_told_of_another_size_of_its_place_changes_nothing) {
  returning_sizes r;
  static_cast<void>(r.freed(1));
  r.asked(1);
  for (std::uint32_t other = 2; other < 5000; ++other) {
    r.asked(other);
    r.unused(other);
    r.kept(other, true);
  }
  EXPECT_TRUE(r.freed(1));
  EXPECT_EQ(kept_of(r, 1, 4, true), 4);
}

}  // namespace
}  // namespace gpumem
