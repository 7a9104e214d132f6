#include <gtest/gtest.h>

#include <vector>

#include "block.hpp"

namespace gpumem {
namespace {

TEST(block_table, records_never_move_and_are_used_again) {
  block_table t;
  std::vector<block*> where;
  for (block_index i = 0; i < 10'000; ++i) {
    ASSERT_EQ(t.take(), i);
    t[i].begin = i;
    where.push_back(&t[i]);
  }
  for (block_index i = 0; i < 10'000; ++i) {
    ASSERT_EQ(&t[i], where[i]);
    ASSERT_EQ(t[i].begin, i);
  }
  t.give(17);
  t.give(4'000);
  EXPECT_EQ(t.used(), 9'998U);
  EXPECT_EQ(t.take(), 4'000U);
  EXPECT_EQ(t.take(), 17U);
  EXPECT_EQ(t[17].begin, 0U) << "a record that is used again begins empty";
  EXPECT_EQ(t.made(), 10'000U);
}

TEST(block_table, holds_at_most_twice_what_was_needed_beyond_its_first_chunk) {
  block_table t;
  for (block_index i = 0; i < 100'000; ++i) {
    t.take();
    if (i < 1024) continue;
    ASSERT_LE(t.bytes(), std::uint64_t{2} * 64 * (i + 1) + 64 * 1024);
  }
}

}  // namespace
}  // namespace gpumem
