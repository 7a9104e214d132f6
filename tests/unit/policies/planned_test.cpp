#include <gtest/gtest.h>

#include "views.hpp"

namespace gpumem::test {
namespace {

std::unique_ptr<policy> planned(std::uint64_t plan_bytes) {
  auto made = *make_policy("planned", {.total_bytes = 80 * gib, .granularity_bytes = 2 * mib});
  if (plan_bytes != 0) made->follow_plan(plan_bytes);
  return made;
}

TEST(Planned, TakesThePlanInOnePieceOrNotAtAll) {
  const auto p = planned(3 * gib + 512);
  EXPECT_EQ(p->first(view_of(80 * gib)).bytes, 3 * gib + 512);
  EXPECT_EQ(p->first(view_of(80 * gib)).least_bytes, 3 * gib + 512);
}

TEST(Planned, KeepsDeparturesFromThePlanInSeparateSegments) {
  const auto p = planned(3 * gib);
  EXPECT_EQ(p->segment_classes(), 2U);
  EXPECT_EQ(p->segment_class(512), 1U);
  EXPECT_EQ(p->segment_class(gib), 1U);
}

TEST(Planned, GrowsBesideThePlanAsIfThatWereNotThere) {
  const auto p = planned(3 * gib);
  p->grew(view_of(80 * gib, 3 * gib), 3 * gib);
  EXPECT_EQ(p->grow(view_of(80 * gib, 3 * gib), 512).bytes, 16 * mib);
  EXPECT_EQ(p->grow(view_of(80 * gib, 4 * gib), 512).bytes, make("growth")->grow(view_of(80 * gib, gib), 512).bytes);
}

TEST(Planned, GivesNothingBackWithAPlan) {
  EXPECT_FALSE(planned(gib)->gives_back(give_back::trim, view_of(80 * gib)));
  EXPECT_FALSE(planned(gib)->gives_back(give_back::pressure, view_of(80 * gib)));
}

TEST(Planned, IsGrowthWithoutAPlan) {
  const auto p = planned(0);
  EXPECT_EQ(p->first(view_of(80 * gib)).bytes, 0U);
  EXPECT_EQ(p->grow(view_of(80 * gib), 512).bytes, 16 * mib);
  EXPECT_EQ(p->grow(view_of(80 * gib, gib), 512).bytes, make("growth")->grow(view_of(80 * gib, gib), 512).bytes);
  EXPECT_EQ(p->segment_classes(), 1U);
  EXPECT_TRUE(p->gives_back(give_back::trim, view_of(80 * gib)));
}

}  // namespace
}  // namespace gpumem::test
