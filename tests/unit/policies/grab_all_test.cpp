#include <gtest/gtest.h>

#include "views.hpp"

namespace gpumem::test {
namespace {

TEST(GrabAll, TakesEverythingAllowedAtTheFirstRequest) {
  const segment_request asked = make("grab_all")->first(view_of(70 * gib));
  EXPECT_EQ(asked.bytes, 70 * gib);
  EXPECT_EQ(asked.least_bytes, 2 * mib) << "less is better than nothing";
}

TEST(GrabAll, CountsReservedMemoryOfThePool) {
  EXPECT_EQ(make("grab_all")->first(view_of(gib, mib)).bytes, 1022 * mib);
}

TEST(GrabAll, AsksForWholeGranulesOnly) { EXPECT_EQ(make("grab_all")->first(view_of(5 * mib + 1)).bytes, 4 * mib); }

TEST(GrabAll, AsksForNothingWhereTheLimitIsBelowAGranule) {
  EXPECT_EQ(make("grab_all")->first(view_of(2 * mib - 1)).bytes, 0U);
  EXPECT_EQ(make("grab_all")->first(view_of(gib, gib)).bytes, 0U);
  EXPECT_EQ(make("grab_all")->first(view_of(gib, 2 * gib)).bytes, 0U);
}

TEST(GrabAll, GrowsByTheRestWhenItGotLessAtFirst) {
  const segment_request asked = make("grab_all")->grow(view_of(10 * gib, 9 * gib), 5 * mib);
  EXPECT_EQ(asked.bytes, gib);
  EXPECT_EQ(asked.least_bytes, 6 * mib);
}

TEST(GrabAll, RequestsTheNeededBytesEvenWithAllMemoryReserved) {
  const segment_request asked = make("grab_all")->grow(view_of(gib, gib), 3 * mib);
  EXPECT_EQ(asked.bytes, 4 * mib);
  EXPECT_EQ(asked.least_bytes, 4 * mib);
}

TEST(GrabAll, SurvivesSizesNear64Bits) {
  const segment_request asked = make("grab_all")->grow(view_of(UINT64_MAX), UINT64_MAX - 1);
  EXPECT_GE(asked.least_bytes, UINT64_MAX - 1);
  EXPECT_GE(asked.bytes, asked.least_bytes);
  EXPECT_EQ(make("grab_all")->first(view_of(UINT64_MAX)).bytes, UINT64_MAX - (2 * mib - 1));
}

TEST(GrabAll, NeverGivesBack) {
  const auto grab_all = make("grab_all");
  EXPECT_FALSE(grab_all->gives_back(give_back::pressure, view_of(gib, gib)));
  EXPECT_FALSE(grab_all->gives_back(give_back::trim, view_of(gib, gib)));
}

TEST(GrabAll, ShrinksTowardsAGranuleWhenTheDeviceHasLess) {
  const auto grab_all = make("grab_all");
  const segment_request asked = grab_all->first(view_of(80 * gib));
  std::uint64_t size = asked.bytes;
  int attempts = 0;
  while (size > gib) {
    const std::uint64_t next = grab_all->smaller(size, asked.least_bytes);
    ASSERT_LT(next, size);
    ASSERT_GE(next, size / 10 * 9);
    size = next;
    ++attempts;
  }
  EXPECT_EQ(attempts, 42) << "80 * 0.9^42 < 1";
}

}  // namespace
}  // namespace gpumem::test
