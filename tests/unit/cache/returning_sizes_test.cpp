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

// Two sizes of one place: the latest freed is known, and what is told of the other one is not taken for it.
TEST(returning_sizes, what_is_told_of_another_size_of_its_place_changes_nothing) {
  returning_sizes r;
  static_cast<void>(r.freed(1));
  r.asked(1);
  for (std::uint32_t other = 2; other < 5000; ++other) {
    r.asked(other);
    r.unused(other);
  }
  EXPECT_TRUE(r.freed(1));
}

}  // namespace
}  // namespace gpumem
