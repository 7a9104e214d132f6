#include "retention.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr class_room half_free{.bytes = 64 * mib, .free_bytes = 32 * mib, .segment_bytes = 64 * mib};

TEST(retention, small_blocks_are_kept_soon_and_large_ones_after_the_peak_was_turned_over) {
  retention r;
  for (int k = 0; k < 511; ++k) r.served_below(512, mib);
  EXPECT_EQ(r.may_keep(512, half_free, 0, mib), 0U);
  r.served_below(512, mib);
  EXPECT_GT(r.may_keep(512, half_free, 0, mib), 0U);
  EXPECT_FALSE(r.calm());
  EXPECT_EQ(r.may_keep(mib, half_free, 0, mib), 0U);
  for (int k = 0; k < 128; ++k) r.served_below(mib, mib);
  EXPECT_TRUE(r.calm());
  EXPECT_EQ(r.may_keep(mib, half_free, 0, mib), 8 * mib) << "half of what is free, times the half that is";
}

TEST(retention, a_new_peak_and_pressure_end_it) {
  retention r;
  for (int k = 0; k < 600; ++k) r.served_below(mib, mib);
  ASSERT_TRUE(r.calm());
  r.served_below(512, mib + mib / 100);
  EXPECT_TRUE(r.calm()) << "a hundredth is no growth";
  r.served_below(512, 2 * mib);
  EXPECT_FALSE(r.calm());
  for (int k = 0; k < 600; ++k) r.served_below(mib, 2 * mib);
  ASSERT_TRUE(r.calm());
  r.pressure();
  EXPECT_FALSE(r.calm());
  EXPECT_EQ(r.may_keep(512, half_free, 0, 2 * mib), 0U);
}

TEST(retention, the_fuller_the_segments_the_less) {
  retention r;
  for (int k = 0; k < 600; ++k) r.served_below(mib, mib);
  class_room room = half_free;
  const std::uint64_t half = r.may_keep(mib, room, 0, mib);
  room.free_bytes = 8 * mib;
  EXPECT_LT(r.may_keep(mib, room, 0, mib), half / 8);
  EXPECT_LT(r.may_keep(mib, half_free, 0, 40 * mib), half / 10) << "where more than half was live once";
  room = half_free;
  room.paged = true;
  EXPECT_EQ(r.may_keep(mib, room, 0, 40 * mib), half) << "a paged pool's cached blocks are small against a page";
  EXPECT_EQ(r.may_keep(mib, {}, 0, mib), 0U) << "there is no segment";
}

TEST(retention, what_caches_hold_counts_as_free_for_small_blocks) {
  retention r;
  for (int k = 0; k < 600; ++k) r.served_below(mib, mib);
  class_room room{.bytes = 64 * mib, .free_bytes = 0, .segment_bytes = 64 * mib};
  EXPECT_EQ(r.may_keep(512, room, 0, mib), 64 * kib) << "a 1024th of what is out";
  EXPECT_GT(r.may_keep(512, room, 32 * mib, mib), 64 * kib);
  room.only_class = false;
  EXPECT_EQ(r.may_keep(512, room, 32 * mib, mib), 64 * kib) << "which are not counted by class";
}

}  // namespace
}  // namespace gpumem
