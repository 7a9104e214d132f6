#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "growth_rule.hpp"
#include "views.hpp"

namespace gpumem::test {
namespace {

/// The numbers in a policy's source except 0 and 1, without those in comments and strings.
std::vector<std::string> numbers_in(const std::string& file) {
  std::ifstream source{std::string{GPUMEM_POLICIES_FOLDER} + "/" + file};
  EXPECT_TRUE(source.is_open()) << file;
  const std::regex not_code{R"(//.*|"([^"\\]|\\.)*")"};
  const std::regex number{R"((^|[^A-Za-z0-9_.])([0-9][0-9'.]*))"};
  std::vector<std::string> found;
  for (std::string line; std::getline(source, line);) {
    line = std::regex_replace(line, not_code, "");
    for (std::sregex_iterator at{line.begin(), line.end(), number}, end; at != end; ++at) {
      if ((*at)[2] != "0" && (*at)[2] != "1") found.push_back((*at)[2]);
    }
  }
  return found;
}

growth_rule rule_at(std::uint64_t exchange_rate = growth_rule::default_exchange_rate) {
  return {exchange_rate, known_prices.front()};
}

TEST(GrowthRule, AStepIsTheRootOfThePoolAndAtLeast16MiB) {
  const growth_rule rule = rule_at();
  EXPECT_EQ(rule.step_bytes(0), 16 * mib);
  EXPECT_EQ(rule.step_bytes(64 * mib), 16 * mib);
  // sqrt(2 * 58.75 us * 1024 MiB / 96 us per MiB) = 35.4 MiB
  EXPECT_EQ(rule.step_bytes(gib) / mib, 35U);
  EXPECT_EQ(rule.step_bytes(16 * gib) / mib, 141U) << "four times as much for 16 times the pool";
  EXPECT_EQ(rule.step_bytes(gib, true) / mib, 43U) << "with 87.3 us for a run of pages";
}

TEST(GrowthRule, AStepIsAtMostHalfThePool) {
  EXPECT_EQ(rule_at(1).step_bytes(128 * mib), 64 * mib);
  EXPECT_EQ(rule_at(0).step_bytes(8 * gib), 4 * gib);
  EXPECT_EQ(rule_at(0).step_bytes(0), 16 * mib);
}

TEST(GrowthRule, DearerMemoryMakesSmallerSteps) {
  EXPECT_LT(rule_at(384).step_bytes(8 * gib), rule_at(24).step_bytes(8 * gib));
}

TEST(GrowthRule, TheNumberOfStepsGrowsWithTheRootOfThePool) {
  std::uint64_t steps = 0;
  for (std::uint64_t held = 0; held < 64 * gib; held += rule_at().step_bytes(held)) ++steps;
  EXPECT_LE(steps, 475U) << "sqrt(2 * 65536 MiB * 96 us per MiB / 58.75 us) = 463, and the first ones";
}

TEST(GrowthRule, RequestsOf16MiBGetASegmentOfTheirOwnSize) {
  for (const std::uint64_t held : {std::uint64_t{0}, gib, 64 * gib}) {
    EXPECT_EQ(rule_at().covering(16 * mib, held), 16 * mib);
    EXPECT_EQ(rule_at().covering(512, held), round_down(rule_at().step_bytes(held), 512));
    EXPECT_EQ(rule_at().covering(5 * mib, held) % (5 * mib), 0U) << "requests of its size fill it without a rest";
    EXPECT_EQ(rule_at().covering(96 * mib, held), 96 * mib) << "the weights of a model leave no hole behind them";
  }
}

TEST(GrowthRule, SurvivesSizesNear64Bits) {
  EXPECT_EQ(rule_at().covering(UINT64_MAX, 0), UINT64_MAX);
  EXPECT_LT(rule_at().step_bytes(UINT64_MAX), 16 * tib);
  EXPECT_TRUE(rule_at().returns(gib, UINT64_MAX, UINT64_MAX));
}

TEST(GrowthRule, ASegmentGoesBackIfItsCallsCostLessThanTheGrowthThatItSaves) {
  const growth_rule rule = rule_at();
  EXPECT_TRUE(rule.returns(400 * mib, 800 * mib, gib));
  EXPECT_FALSE(rule.returns(400 * mib, 32 * mib, gib)) << "3.9 ms of calls for 32 MiB, which are worth 3.1 ms";
  EXPECT_FALSE(rule_at(48).returns(2 * mib, 800 * mib, gib)) << "131 us of calls for 2 MiB, which are worth 96 us";
  EXPECT_FALSE(rule_at(0).returns(400 * mib, 800 * mib, gib)) << "memory is free";
}

// Ski rental: a pool of 1200 MiB spends at most 115 ms at 96 us per MiB, and a segment of 400 MiB takes about 3.9 ms.
TEST(GrowthRule, SegmentsThatReturnInEachStepStayOnceTheirRentHasPaidForTheGrowth) {
  growth_rule rule = rule_at();
  int rounds = 0;
  for (; rule.returns(400 * mib, 800 * mib, 1200 * mib); ++rounds) rule.returned(400 * mib);
  EXPECT_EQ(rounds, 29);
  EXPECT_TRUE(rule.returns(400 * mib, 800 * mib, 4 * gib)) << "a larger pool may spend more";
}

TEST(Growth, MergesIdleSegmentsIfThatCostsLessThanWhatThePoolHoldsBeyondThePeak) {
  const auto growth = make("growth");
  pool_view view = view_of(80 * gib, gib);
  view.peak_live_bytes = gib - 64 * mib;
  EXPECT_TRUE(growth->merges_idle(view, 400 * mib, 2)) << "calls of .4 ms on this card; 64 MiB are worth 6.1 ms";
  view.peak_live_bytes = gib - 2 * mib;
  EXPECT_FALSE(growth->merges_idle(view, 400 * mib, 2)) << "2 MiB are worth .2 ms";
  view.peak_live_bytes = 2 * gib;
  EXPECT_FALSE(growth->merges_idle(view, 400 * mib, 2)) << "the pool held more at its peak";
}

// A pool of segments of one size, of which all but the last two come and go in each step. The best fixed choices are
// never to give back, which costs the bytes at the rate, and always to, which costs two calls a segment and step.
TEST(GrowthRule, SpendsAtMostTwiceTheBetterFixedChoice) {
  for (const std::uint64_t segment : {32 * mib, 400 * mib, 2 * gib}) {
    const call_prices& prices = known_prices.front();
    const double calls_us = prices.take(segment) + prices.give_back(segment);
    const double rent_us = static_cast<double>(10 * segment / mib) * growth_rule::default_exchange_rate;
    growth_rule rule = rule_at();
    double spent_us = 0;
    for (int step = 1; step <= 100; ++step) {
      const bool went = rule.returns(segment, segment, 10 * segment);
      if (went) rule.returned(segment);
      spent_us += went ? calls_us : 0;
      const double best_us = std::min(rent_us, step * calls_us);
      EXPECT_LE(spent_us, 2 * best_us) << segment << ", step " << step;
    }
  }
}

TEST(CallPrices, AreThoseOfTheCardsName) {
  EXPECT_EQ(prices_of("NVIDIA A100-SXM4-40GB", 8).card, "A100");
  EXPECT_EQ(prices_of("NVIDIA H100 80GB HBM3", 9).card, "H100");
  EXPECT_EQ(prices_of("simulated GPU", 9).card, "simulated");
}

TEST(CallPrices, OfAnUnknownCardAreThoseOfTheNearestKind) {
  EXPECT_EQ(prices_by_name("NVIDIA GeForce RTX 4090"), nullptr);
  EXPECT_EQ(prices_of("NVIDIA GeForce RTX 4090", 8).card, "A100");
  EXPECT_EQ(prices_of("Tesla P100", 6).card, "A100");
  EXPECT_EQ(prices_of("NVIDIA H200", 9).card, "H100");
  EXPECT_EQ(prices_of("NVIDIA B200", 10).card, "H100");
}

// Every number that decides, so that none is added in silence. The units KiB, MiB and GiB and the numbers 0 and 1 are
// no parameters.
TEST(GrowthRule, HasNoOtherNumbersThanTheDocumentedOnes) {
  const std::map<std::string, std::vector<std::string>> documented{
      {"growth_rule.hpp",
       {"16",        // the least step, in MiB
        "96",        // the exchange rate
        "2", "2"}},  // of the formula, and a step is at most half the pool
      {"growth.cpp",
       {"2", "2", "2",  // growth:segments is TensorFlow's: it halves, doubles, and begins with 2 MiB
        "48"}},         // backing=mapped makes this part of the pool at a time
      {"expandable.cpp",
       {"16",         // the exchange rate, as a multiple of growth's
        "112",        // where small blocks lie: their size in KiB
        "2",          // the slack is half a step
        "3",          // runs of a third of a step where the slack does not cover a request
        "16",         // made singly, in GiB
        "2", "2"}}};  // no overflow; the first half of the limit is made in runs
  for (const auto& [file, expected] : documented) EXPECT_EQ(numbers_in(file), expected) << file;
}

TEST(Growth, TakesNothingAheadOfDemand) { EXPECT_EQ(make("growth")->first(view_of(gib)).bytes, 0U); }

TEST(Growth, AsksForAStepAndNeedsOnlyTheRequest) {
  const auto growth = make("growth");
  const segment_request first = growth->grow(view_of(80 * gib), 512);
  EXPECT_EQ(first.bytes, 16 * mib);
  EXPECT_EQ(first.least_bytes, 2 * mib) << "a segment occupies whole granules";

  const segment_request second = growth->grow(view_of(80 * gib, 16 * mib), 21 * mib - 512);
  EXPECT_EQ(second.bytes, 22 * mib) << "of its own";
  EXPECT_EQ(second.least_bytes, 22 * mib);
}

TEST(Growth, AStepEndsAtTheLimit) {
  const auto growth = make("growth");
  const segment_request asked = growth->grow(view_of(100 * mib, 90 * mib), 3 * mib);
  EXPECT_EQ(asked.bytes, 10 * mib);
  EXPECT_EQ(asked.least_bytes, 4 * mib);
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

TEST(Growth, FillsTheLimitInStepsThatGrowSlowly) {
  std::vector<std::uint64_t> equal(6, 16 * mib);
  equal.push_back(4 * mib);
  EXPECT_EQ(segments_of("growth", 100 * mib, 512), equal);
  const std::vector<std::uint64_t> steps = segments_of("growth", 16 * gib, 512);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end() - 1)) << "but for the rest of the limit";
  EXPECT_EQ(steps.front(), 16 * mib);
  EXPECT_LE(*std::max_element(steps.begin(), steps.end()), 142 * mib);
  EXPECT_LE(steps.size(), 250U) << "sqrt(2 * 16384 MiB * 96 us per MiB / 58.75 us) = 231, and the first ones";
}

TEST(Growth, TheExchangeRateIsAParameter) {
  EXPECT_GT(make("growth:exchange_rate=1")->grow(view_of(80 * gib, gib), 512).bytes,
            make("growth")->grow(view_of(80 * gib, gib), 512).bytes);
  EXPECT_TRUE(make("growth")->returns_before_growth(view_of(80 * gib, gib), 400 * mib, 800 * mib));
  EXPECT_FALSE(make("hard_cap:exchange_rate=0")->returns_before_growth(view_of(80 * gib, gib), 400 * mib, 800 * mib));
  for (const std::string text : {"-1", "x", "1.5", "1000001", "1e3"}) {
    EXPECT_EQ(
        find_policy("growth:exchange_rate=" + text).why().message(),
        "policy growth:exchange_rate=" + text + ": expected microseconds per MiB, a whole number from 0 to 1000000");
  }
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

TEST(GrowthSegments, KeepTheRequirementOfAPolicyThatHasOne) {
  EXPECT_TRUE(find_policy("hard_cap:segments")->needs.limit);
  EXPECT_TRUE(find_policy("multi_pool:segments")->needs.pools);
  EXPECT_EQ(make("hard_cap:segments")->grow(view_of(80 * gib), 512).bytes, 2 * mib) << "TensorFlow's first step";
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

TEST(GrowthInOneRegion, MapsA48thOfThePoolOrTheMissingBytes) {
  const auto growth = in_one_region(2 * mib);
  const auto mapped = [&](std::uint64_t held, std::uint64_t missing) {
    return growth->page_in(view_of(80 * gib, held), 512, missing).make_bytes;
  };
  EXPECT_EQ(mapped(0, 2 * mib), 2 * mib);
  EXPECT_EQ(mapped(0, 40 * mib), 40 * mib);
  EXPECT_EQ(mapped(gib, 2 * mib), 20 * mib) << "in whole pages";
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
