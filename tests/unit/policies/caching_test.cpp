#include <gtest/gtest.h>

#include "views.hpp"

namespace gpumem::test {
namespace {

struct segment_size_case {
  std::uint64_t need_bytes;
  std::uint64_t segment_bytes;
  unsigned segment_class;
};

TEST(Caching, TakesTheSegmentOfTheRequestsClass) {
  const auto caching = make("caching");
  for (const segment_size_case& c : {
           segment_size_case{512, 2 * mib, 0},
           {1 * mib, 2 * mib, 0},
           {1 * mib + 512, 20 * mib, 1},
           {10 * mib - 512, 20 * mib, 1},
           {10 * mib, 10 * mib, 1},
           {10 * mib + 512, 12 * mib, 1},
           {20 * mib, 20 * mib, 1},
           {gib + 1, gib + 2 * mib, 1},
       }) {
    EXPECT_EQ(caching->grow(view_of(80 * gib), c.need_bytes).bytes, c.segment_bytes) << c.need_bytes;
    EXPECT_EQ(caching->segment_class(c.need_bytes), c.segment_class) << c.need_bytes;
    EXPECT_LT(caching->segment_class(c.need_bytes), caching->segment_classes());
  }
}

TEST(Caching, NeedsOnlyTheRequest) {
  EXPECT_EQ(make("caching")->grow(view_of(80 * gib), 3 * mib).least_bytes, 4 * mib);
  EXPECT_EQ(make("caching")->grow(view_of(80 * gib), 512).least_bytes, 2 * mib);
}

TEST(Caching, TakesASmallerSegmentWhereTheLimitHasNoRoomForAFullOne) {
  EXPECT_EQ(make("caching")->grow(view_of(9 * mib), 3 * mib).bytes, 8 * mib);
  EXPECT_EQ(make("caching")->grow(view_of(100 * mib, 96 * mib), 3 * mib).bytes, 4 * mib);
}

TEST(Caching, RequestsTheNeededBytesEvenBeyondTheLimit) {
  const segment_request asked = make("caching")->grow(view_of(mib), 3 * mib);
  EXPECT_EQ(asked.bytes, 4 * mib);
  EXPECT_EQ(asked.least_bytes, 4 * mib);
}

TEST(Caching, KeepsPyTorchsSizesOnACoarserDevice) {
  pool_view view = view_of(80 * gib);
  view.granularity_bytes = 32 * mib;
  EXPECT_EQ(make("caching")->grow(view, 512).bytes, 32 * mib);
  EXPECT_EQ(make("caching")->grow(view, 33 * mib).bytes, 64 * mib);
}

TEST(Caching, RequestsTheNeededBytesAfterARefusalAndThenStops) {
  const auto caching = make("caching");
  EXPECT_EQ(caching->smaller(20 * mib, 4 * mib), 4 * mib);
  EXPECT_EQ(caching->smaller(4 * mib, 4 * mib), 0U);
  EXPECT_EQ(caching->smaller(2 * mib, 4 * mib), 0U);
}

TEST(Caching, SurvivesSizesNear64Bits) {
  for (const std::uint64_t need : {UINT64_MAX, UINT64_MAX - 2 * mib + 1, UINT64_MAX - 4 * mib}) {
    const segment_request asked = make("caching")->grow(view_of(80 * gib), need);
    EXPECT_GE(asked.least_bytes, need);
    EXPECT_GE(asked.bytes, asked.least_bytes);
  }
}

TEST(Caching, TakesNothingAheadAndGivesBackAlways) {
  const auto caching = make("caching");
  EXPECT_EQ(caching->first(view_of(gib)).bytes, 0U);
  EXPECT_TRUE(caching->gives_back(give_back::pressure, view_of(gib, gib)));
  EXPECT_TRUE(caching->gives_back(give_back::trim, view_of(gib, gib)));
}

}  // namespace
}  // namespace gpumem::test
