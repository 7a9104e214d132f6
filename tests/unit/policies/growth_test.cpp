#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "growth_steps.hpp"
#include "views.hpp"

namespace gpumem::test {
namespace {

TEST(GrowthSteps, DoubleAfterEachStepThatWasTaken) {
  growth_steps steps;
  for (std::uint64_t expected = 16 * mib; expected <= 128 * mib; expected *= 2) {
    EXPECT_EQ(steps.covering(512, 0), expected);
    steps.taken();
  }
}

TEST(GrowthSteps, FollowTheTableOnceTheyHaveDoubled) {
  growth_steps steps;
  for (int i = 0; i < 20; ++i) {
    static_cast<void>(steps.covering(512, 0));
    steps.taken();
  }
  EXPECT_EQ(steps.covering(512, 100 * mib), 128 * mib);
  EXPECT_EQ(steps.covering(512, 512 * mib), 128 * mib);
  EXPECT_EQ(steps.covering(512, 640 * mib), 160 * mib) << "a quarter of a small pool";
  EXPECT_EQ(steps.covering(512, 768 * mib), 192 * mib);
  EXPECT_EQ(steps.covering(512, 6 * gib), 192 * mib);
  EXPECT_EQ(steps.covering(512, 8 * gib), 256 * mib) << "a thirty-second of a large one";
}

TEST(GrowthSteps, ALargeRequestGetsASegmentOfItsOwnSizeAndLeavesTheStepsAlone) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(24 * mib, 0), 24 * mib);
  steps.taken();
  EXPECT_EQ(steps.covering(3 * gib + 1, 8 * gib), 3 * gib + 2 * mib) << "in whole units of 2 MiB";
  steps.taken();
  EXPECT_EQ(steps.covering(512, 8 * gib), 16 * mib) << "the first step is still to come";
}

TEST(GrowthSteps, SmallRequestsShareASegmentAndSoDoThoseThatAreSmallForThePool) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(24 * mib - 1, 0), 32 * mib) << "below 24 MiB";
  EXPECT_EQ(steps.covering(30 * mib, 2880 * mib), 30 * mib) << "a part of the pool in 96";
  EXPECT_EQ(steps.covering(30 * mib - 1, 2880 * mib), 32 * mib) << "less";
}

TEST(GrowthSteps, RequestsOf32MiBShareNoSegmentHoweverLargeThePoolIs) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(32 * mib, 64 * gib), 32 * mib) << "the weights of a model leave no hole behind them";
  steps.taken();
  EXPECT_EQ(steps.covering(96 * mib, 64 * gib), 96 * mib);
}

TEST(GrowthSteps, DoubleUntilTheyCoverTheRequestAndThenNotAgain) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(17 * mib, 0), 32 * mib);
  steps.taken();
  EXPECT_EQ(steps.covering(512, 0), 32 * mib);
  steps.taken();
  EXPECT_EQ(steps.covering(512, 0), 64 * mib);
}

TEST(GrowthSteps, AnExactStepCountsAsCovering) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(16 * mib, 0), 16 * mib);
  EXPECT_EQ(steps.covering(16 * mib + 1, 0), 32 * mib);
}

TEST(GrowthSteps, ARefusedStepLeavesNoTrace) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(20 * mib, 0), 32 * mib);
  EXPECT_EQ(steps.covering(gib, 0), gib);
  EXPECT_EQ(steps.covering(512, 0), 16 * mib);
}

TEST(GrowthSteps, StopDoublingAtTheEndOf64Bits) {
  growth_steps steps;
  EXPECT_EQ(steps.covering(UINT64_MAX, 0), UINT64_MAX);
  for (int i = 0; i < 70; ++i) {
    static_cast<void>(steps.covering(512, UINT64_MAX));
    steps.taken();
  }
  EXPECT_EQ(steps.covering(1, UINT64_MAX), UINT64_MAX / 32);
}

TEST(GrowthSteps, CanStartAnywhere) {
  growth_steps steps{64 * mib};
  EXPECT_EQ(steps.covering(512, 0), 64 * mib);
  growth_steps odd{3};
  EXPECT_EQ(odd.covering(100, 0), 192U);
}

TEST(Growth, TakesNothingAheadOfDemand) { EXPECT_EQ(make("growth")->first(view_of(gib)).bytes, 0U); }

TEST(Growth, AsksForAStepAndNeedsOnlyTheRequest) {
  const auto growth = make("growth");
  const segment_request first = growth->grow(view_of(80 * gib), 512);
  EXPECT_EQ(first.bytes, 16 * mib);
  EXPECT_EQ(first.least_bytes, 2 * mib) << "a segment occupies whole granules";
  growth->grew(view_of(80 * gib, 16 * mib), 16 * mib);

  const segment_request second = growth->grow(view_of(80 * gib, 16 * mib), 21 * mib);
  EXPECT_EQ(second.bytes, 32 * mib);
  EXPECT_EQ(second.least_bytes, 22 * mib);
}

TEST(Growth, AStepEndsAtTheLimit) {
  const auto growth = make("growth");
  const segment_request asked = growth->grow(view_of(100 * mib, 80 * mib), 17 * mib);
  EXPECT_EQ(asked.bytes, 20 * mib);
  EXPECT_EQ(asked.least_bytes, 18 * mib);
}

TEST(Growth, RoundsTheRestOfTheLimitDownToGranules) {
  EXPECT_EQ(make("growth")->grow(view_of(7 * mib + 511), 4 * mib + 1).bytes, 6 * mib);
  EXPECT_EQ(make("growth")->grow(view_of(7 * mib, 3 * mib), 3 * mib).bytes, 4 * mib);
}

TEST(Growth, RequestsTheNeededBytesEvenBeyondTheLimit) {
  for (const pool_view& full : {view_of(mib), view_of(gib, gib), view_of(gib, 2 * gib), view_of(0)}) {
    const segment_request asked = make("growth")->grow(full, 3 * mib);
    EXPECT_EQ(asked.bytes, 4 * mib);
    EXPECT_EQ(asked.least_bytes, 4 * mib);
  }
}

TEST(Growth, ARequestBeyondTheLimitDoesNotMakeTheNextStepLarge) {
  const auto growth = make("growth");
  EXPECT_EQ(growth->grow(view_of(80 * gib), 79 * gib).bytes, 79 * gib);
  EXPECT_EQ(growth->grow(view_of(80 * gib), 512).bytes, 16 * mib);
}

TEST(Growth, SurvivesSizesNear64Bits) {
  for (const std::uint64_t need : {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 2 * mib, std::uint64_t{1} << 63}) {
    const auto growth = make("growth");
    const segment_request asked = growth->grow(view_of(80 * gib), need);
    EXPECT_GE(asked.least_bytes, need);
    EXPECT_GE(asked.bytes, asked.least_bytes);
  }
  EXPECT_EQ(make("growth")->grow(view_of(UINT64_MAX), 512).bytes, 16 * mib);
}

TEST(Growth, WorksWhereTheDeviceNamesNoGranularity) {
  pool_view view = view_of(1000);
  view.granularity_bytes = 0;
  const segment_request asked = make("growth")->grow(view, 999);
  EXPECT_EQ(asked.bytes, 1000U);
  EXPECT_EQ(asked.least_bytes, 999U);
}

TEST(Growth, KeepsItsSegmentsUntilAskedOrOutOfMemory) {
  const auto growth = make("growth");
  EXPECT_TRUE(growth->gives_back(give_back::pressure, view_of(gib, gib)));
  EXPECT_TRUE(growth->gives_back(give_back::trim, view_of(gib, gib)));
  EXPECT_EQ(growth->segment_classes(), 1U);
}

/// The segments of `name` up to its limit, all granted in full.
std::vector<std::uint64_t> segments_of(std::string_view name, std::uint64_t limit_bytes, std::uint64_t need_bytes) {
  const auto grower = make(name);
  std::vector<std::uint64_t> out;
  std::uint64_t held = 0;
  while (true) {
    const segment_request asked = grower->grow(view_of(limit_bytes, held), need_bytes);
    if (asked.least_bytes > limit_bytes - held) return out;
    held += asked.bytes;
    out.push_back(asked.bytes);
    grower->grew(view_of(limit_bytes, held), asked.bytes);
  }
}

TEST(Growth, FillsTheLimitInStepsThatDoubleAndThenGrowSlowly) {
  const std::vector<std::uint64_t> doubling{16 * mib, 32 * mib, 52 * mib};
  EXPECT_EQ(segments_of("growth", 100 * mib, 512), doubling);
  const std::vector<std::uint64_t> slow{16 * mib,  32 * mib,  64 * mib,  128 * mib, 128 * mib,
                                        128 * mib, 128 * mib, 156 * mib, 192 * mib, 52 * mib};
  EXPECT_EQ(segments_of("growth", gib, 512), slow);
}

TEST(Growth, ServesHardCapAndMultiPool) {
  for (const std::uint64_t need : {std::uint64_t{512}, 3 * mib, 33 * mib}) {
    EXPECT_EQ(segments_of("hard_cap", 999 * mib, need), segments_of("growth", 999 * mib, need));
    EXPECT_EQ(segments_of("multi_pool", 999 * mib, need), segments_of("growth", 999 * mib, need));
  }
}

TEST(GrowthSegments, AreTensorFlowsSteps) {
  const std::vector<std::uint64_t> small{2 * mib, 4 * mib, 8 * mib, 16 * mib, 32 * mib, 38 * mib};
  EXPECT_EQ(segments_of("growth:segments", 100 * mib, 512), small);
  const std::vector<std::uint64_t> large{64 * mib, 64 * mib, 128 * mib, 256 * mib, 512 * mib};
  EXPECT_EQ(segments_of("growth:segments", gib, 33 * mib), large) << "shared by all sizes, and up to the whole pool";
}

TEST(GrowthSegments, StartAgainAsSmallAsThePoolIsAfterATrim) {
  const auto growth = make("growth:segments");
  std::uint64_t held = 0;
  for (int i = 0; i < 5; ++i) {
    held += growth->grow(view_of(80 * gib, held), 512).bytes;
    growth->grew(view_of(80 * gib, held), 0);
  }
  EXPECT_EQ(growth->grow(view_of(80 * gib, held), 512).bytes, 64 * mib);
  EXPECT_EQ(growth->grow(view_of(80 * gib, 4 * mib), 512).bytes, 4 * mib);
  EXPECT_EQ(growth->grow(view_of(80 * gib, 0), 512).bytes, 2 * mib);
}

TEST(GrowthSegments, GoBackOnlyWhenAsked) {
  const auto growth = make("growth:segments");
  EXPECT_FALSE(growth->gives_back(give_back::pressure, view_of(gib, gib)));
  EXPECT_TRUE(growth->gives_back(give_back::trim, view_of(gib, gib)));
}

std::unique_ptr<policy> in_one_region(std::uint64_t page_bytes) {
  auto made = make_policy("growth:backing=mapped", {.total_bytes = 80 * gib, .page_bytes = page_bytes});
  return made ? std::move(*made) : nullptr;
}

TEST(GrowthInOneRegion, ReservesAddressesForAllOfTheDeviceAndMovesNothing) {
  const auto growth = in_one_region(2 * mib);
  EXPECT_GE(growth->pages(view_of(80 * gib)).range_bytes, 80 * gib);
  EXPECT_EQ(growth->pages(view_of(80 * gib)).least_range_bytes, 80 * gib) << "else it takes segments";
  EXPECT_EQ(growth->grow(view_of(80 * gib), 512).bytes, 16 * mib) << "as growth does";
  EXPECT_FALSE(growth->page_in(view_of(80 * gib), 512, 2 * mib).moves);
  EXPECT_TRUE(growth->gives_back(give_back::pressure, view_of(gib, gib)));
}

TEST(GrowthInOneRegion, MapsAStepOrTheMissingBytes) {
  const auto growth = in_one_region(2 * mib);
  const auto mapped = [&](std::uint64_t held, std::uint64_t missing) {
    return growth->page_in(view_of(80 * gib, held), 512, missing).make_bytes;
  };
  EXPECT_EQ(mapped(0, 2 * mib), 4 * mib);
  EXPECT_EQ(mapped(0, 40 * mib), 40 * mib);
  EXPECT_EQ(mapped(gib, 2 * mib), 20 * mib);
  EXPECT_EQ(mapped(8 * gib, 2 * mib), 170 * mib);
}

TEST(GrowthInOneRegion, IsSegmentsWhereTheDeviceMapsNoPages) {
  EXPECT_EQ(in_one_region(0)->pages(view_of(80 * gib)).range_bytes, 0U);
  EXPECT_EQ(in_one_region(0)->grow(view_of(80 * gib), 512).bytes, 16 * mib);
}

TEST(GrowthInOneRegion, RefusesABackingThatIsNone) {
  EXPECT_EQ(find_policy("growth:backing=paper").why().message(),
            "policy growth:backing=paper: expected plain or mapped");
}

/// Every size requested from a device that refuses all, including the first.
std::vector<std::uint64_t> refused_sizes(policy& p, std::uint64_t bytes, std::uint64_t least_bytes) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t next = bytes; next != 0; next = p.smaller(next, least_bytes)) {
    out.push_back(next);
    if (out.size() > 1000) break;
  }
  return out;
}

TEST(Growth, ShrinksByTenthsDownToTheNeededBytesAndStops) {
  const auto growth = make("growth");
  const auto sizes = refused_sizes(*growth, 1000, 700);
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{1000, 900, 810, 729, 700}));
  EXPECT_EQ(refused_sizes(*growth, 700, 700).size(), 1U);
  EXPECT_EQ(refused_sizes(*growth, 699, 700).size(), 1U);
}

TEST(Growth, ShrinkingEndsFromAnySize) {
  const auto growth = make("growth");
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{9}, 80 * gib, UINT64_MAX}) {
    for (const std::uint64_t least : {std::uint64_t{0}, std::uint64_t{1}, 2 * mib}) {
      const auto sizes = refused_sizes(*growth, bytes, least);
      EXPECT_LT(sizes.size(), 500U) << bytes << " down to " << least;
      if (bytes > least && least > 0) {
        EXPECT_EQ(sizes.back(), least);
      }
      EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
    }
  }
}

}  // namespace
}  // namespace gpumem::test
