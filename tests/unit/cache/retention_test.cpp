#include "retention.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr class_usage half_free{.bytes = 64 * mib, .free_bytes = 32 * mib};

/// Calm, for blocks of every size, at that peak.
retention calm_at(std::uint64_t peak) {
  retention r;
  for (int k = 0; k < 600; ++k) r.served_below(peak, peak);
  return r;
}

TEST(retention, small_blocks_are_kept_soon_and_large_ones_after_the_peak_was_turned_over) {
  retention r;
  EXPECT_EQ(r.may_keep(mib, half_free), 0U) << "nothing was served yet";
  for (int k = 0; k < 511; ++k) r.served_below(512, mib);
  EXPECT_EQ(r.may_keep(512, half_free), 0U);
  r.served_below(512, mib);
  EXPECT_GT(r.may_keep(4096, half_free), 0U);
  EXPECT_EQ(r.may_keep(4608, half_free), 0U);
  for (int k = 0; k < 128; ++k) r.served_below(mib, mib);
  EXPECT_EQ(r.may_keep(mib, half_free), 8 * mib) << "half of what is free, times the half that is";
}

TEST(retention, a_new_peak_and_pressure_end_it) {
  retention r = calm_at(mib);
  r.served_below(512, mib + mib / 100);
  EXPECT_GT(r.may_keep(mib, half_free), 0U) << "a hundredth is no growth";
  r.served_below(512, 2 * mib);
  EXPECT_EQ(r.may_keep(mib, half_free), 0U);
  r = calm_at(2 * mib);
  ASSERT_GT(r.may_keep(512, half_free), 0U);
  r.pressure();
  EXPECT_EQ(r.may_keep(512, half_free), 0U);
}

TEST(retention, the_fuller_the_segments_the_less) {
  const retention r = calm_at(mib);
  const std::uint64_t half = r.may_keep(mib, half_free);
  EXPECT_EQ(r.may_keep(512, half_free), half) << "of whatever size";
  EXPECT_EQ(r.may_keep(mib, {.bytes = 64 * mib, .free_bytes = 8 * mib}), half / 16);
  EXPECT_LT(calm_at(40 * mib).may_keep(mib, half_free), half / 20) << "where more than half was live once";
  EXPECT_EQ(r.may_keep(mib, {.bytes = 64 * mib}), 0U);
  EXPECT_EQ(r.may_keep(mib, {}), 0U) << "there is no segment";
}

}  // namespace
}  // namespace gpumem
