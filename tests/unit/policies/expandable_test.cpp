/// expandable's arithmetic: which pages are new and which are idle ones.
#include <gtest/gtest.h>

#include "views.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;

std::unique_ptr<policy> with_slack(const std::string& slack) {
  auto made = make_policy(slack.empty() ? "expandable" : "expandable:slack=" + slack, {.total_bytes = 80 * gib,
                                                                                       .free_at_start_bytes = 80 * gib,
                                                                                       .compute_major = 9,
                                                                                       .granularity_bytes = page,
                                                                                       .page_bytes = page});
  return made ? std::move(*made) : nullptr;
}

pool_view holding(std::uint64_t reserved, std::uint64_t live, std::uint64_t peak) {
  pool_view v = test::view_of(80 * gib, reserved);
  v.live_bytes = live;
  v.peak_live_bytes = peak;
  return v;
}

TEST(Expandable, ReservesSeveralTimesTheDeviceInAddresses) {
  const pool_view v = test::view_of(80 * gib);
  EXPECT_GE(with_slack("")->pages(v).range_bytes, 2 * v.total_bytes);
}

TEST(Expandable, LeavesDevicesThatCannotMapPagesToCaching) {
  EXPECT_EQ(with_slack("")->needs().without_pages, "caching");
}

TEST(Expandable, RefusesASlackThatIsNone) {
  for (const char* slack : {"", "x", "-1", "101%", "5%free"}) {
    const auto refused = find_policy("expandable:slack=" + std::string{slack});
    EXPECT_EQ(refused.code(), errc::bad_setting) << slack;
  }
  EXPECT_EQ(find_policy("expandable:slack=much").why().message(),
            "policy expandable:slack=much: expected a share (5%) or bytes (64MiB)");
}

TEST(Expandable, MakesNewPagesUpToTheSlackThatWasSet) {
  const auto p = with_slack("5%");
  // 1000 MiB were live, 900 are, and 100 are requested: up to 1052 MiB, of which 95 % are then in use.
  const auto ask = [&](std::uint64_t reserved) {
    return p->page_in(holding(reserved, 900 * mib, 1000 * mib), 100 * mib, 40 * mib).make_bytes;
  };
  EXPECT_EQ(ask(1000 * mib), 40 * mib);
  EXPECT_EQ(ask(1020 * mib), 32 * mib);
  EXPECT_EQ(ask(1052 * mib), 0U);
  EXPECT_EQ(ask(1100 * mib), 0U);
}

TEST(Expandable, ASlackOfEverythingMovesNothing) {
  const auto p = with_slack("100%");
  EXPECT_EQ(p->page_in(holding(100 * gib, 900 * mib, 1000 * mib), 100 * mib, 40 * mib).make_bytes, 40 * mib);
}

TEST(Expandable, SlackInBytesAndNone) {
  const auto bytes = with_slack("10MiB");
  EXPECT_EQ(bytes->page_in(holding(100 * mib, 100 * mib, 100 * mib), 20 * mib, 40 * mib).make_bytes, 30 * mib);
  const auto none = with_slack("0");
  EXPECT_EQ(none->page_in(holding(100 * mib, 90 * mib, 100 * mib), 10 * mib, 10 * mib).make_bytes, 0U);
}

TEST(Expandable, ByDefaultMakesPagesAheadWhileTheDemandRises) {
  const auto p = with_slack("");
  const auto made = [&](std::uint64_t reserved, std::uint64_t live, std::uint64_t need) {
    return p->page_in(holding(reserved, live, 10 * gib), need, round_up(need, page)).make_bytes;
  };
  // A step of sqrt(2 * 42.9 us * 10240 MiB / 1536 us per MiB) = 23.9 MiB, on an H100; in pages 22 MiB.
  EXPECT_EQ(made(10 * gib, 10 * gib, mib), 12 * mib) << "half a step beyond the new peak, in pages";
  EXPECT_EQ(made(10 * gib, 10 * gib, 14 * mib), 22 * mib) << "at most a step";
  EXPECT_EQ(made(10 * gib, 10 * gib, 300 * mib), 300 * mib) << "nothing ahead of a large request";
  EXPECT_EQ(made(10 * gib + 8 * mib, 10 * gib, 3 * mib), 6 * mib) << "the pool holds pages beyond the peak already";
  EXPECT_EQ(made(gib, 9 * gib, 20 * mib), 20 * mib) << "after `trim`: as much was live before";
}

TEST(Expandable, ByDefaultBoundsRunsBelowThePeakAndOncePagesHaveMoved) {
  const auto p = with_slack("");
  const auto answer = [&](std::uint64_t live, std::uint64_t moved = 0) {
    pool_view v = holding(9 * gib, live, 10 * gib);
    v.moved_bytes = moved;
    return p->page_in(v, 20 * mib, 20 * mib);
  };
  EXPECT_EQ(answer(10 * gib).run_bytes, UINT64_MAX) << "weights, for example, stay";
  EXPECT_FALSE(answer(10 * gib).end_apart);
  EXPECT_EQ(answer(10 * gib - 512).run_bytes, 22 * mib) << "a step";
  EXPECT_TRUE(answer(10 * gib - 512).end_apart);
  EXPECT_EQ(answer(10 * gib, page).run_bytes, 22 * mib) << "the program is past its start";
  EXPECT_FALSE(answer(10 * gib, page).end_apart);
}

TEST(Expandable, ByDefaultMovesPagesBeyondHalfAStep) {
  const auto p = with_slack("");
  const page_request moves = p->page_in(holding(10 * gib + 11 * mib, 9 * gib, 10 * gib), 20 * mib, 20 * mib);
  EXPECT_EQ(moves.make_bytes, 0U);
  EXPECT_EQ(moves.run_bytes, 6 * mib) << "what cannot move is made in short runs, which can";
  EXPECT_EQ(moves.over_bytes, 0U) << "idle runs go back first";
}

TEST(Expandable, ByDefaultStopsMovingOnceTheProgramRepeats) {
  pool_view v = holding(10 * gib + 11 * mib, 9 * gib, 10 * gib);
  const auto made = [&](const std::string& slack) {
    return with_slack(slack)->page_in(v, 20 * mib, 20 * mib).make_bytes;
  };
  EXPECT_EQ(made(""), 0U);
  v.repeats = true;
  EXPECT_EQ(made(""), 20 * mib);
  EXPECT_EQ(made("0"), 0U) << "a configured slack holds";
}

TEST(Expandable, ByDefaultMakesHalfAStepAtATimeOnceTheProgramRepeats) {
  pool_view v = holding(10 * gib + 11 * mib, 9 * gib, 10 * gib);
  v.repeats = true;
  EXPECT_EQ(with_slack("")->page_in(v, 20 * mib, page).make_bytes, 11 * mib) << "so that it soon lacks none";
  EXPECT_EQ(with_slack("")->page_in(v, 300 * mib, 300 * mib).make_bytes, 300 * mib);
}

TEST(Expandable, ByDefaultStopsMovingOnceMovesHaveCostWhatThePoolIsWorth) {
  // On an H100 a page moves for 42.9 us, and 10 GiB are worth 10240 * 1536 us: 366,635 pages.
  pool_view v = holding(10 * gib, 9 * gib, 10 * gib - 100 * mib);
  const auto made = [&](const char* name) {
    return (*make_policy(name, {.total_bytes = 80 * gib, .compute_major = 9, .page_bytes = page}))
        ->page_in(v, 20 * mib, 20 * mib)
        .make_bytes;
  };
  v.moved_bytes = 366'634 * page;
  EXPECT_EQ(made("expandable"), 0U);
  EXPECT_EQ(made("expandable:exchange_rate=3072"), 0U);
  v.moved_bytes = 366'636 * page;
  EXPECT_EQ(made("expandable"), 20 * mib);
  EXPECT_EQ(made("expandable:exchange_rate=3072"), 0U) << "bytes are worth twice as much";
}

TEST(Expandable, MakesNothingAheadWhileOnePageIsEnough) {
  const auto p = with_slack("");
  const auto made = [&](std::uint64_t live, std::uint64_t need) {
    return p->page_in(holding(live, live, live), need, page).make_bytes;
  };
  EXPECT_EQ(made(0, 4096), page);
  EXPECT_EQ(made(0, page), page);
  EXPECT_EQ(made(page, page), page + 8 * mib);
}

TEST(Expandable, TheExchangeRateIsAParameter) {
  const auto cheap = make_policy("expandable:exchange_rate=96", {.total_bytes = 80 * gib, .page_bytes = page});
  ASSERT_TRUE(cheap) << cheap.why().message();
  const pool_view v = holding(30 * gib, 30 * gib, 30 * gib);
  EXPECT_GT((*cheap)->page_in(v, page, page).make_bytes, with_slack("")->page_in(v, page, page).make_bytes);
  const auto free = make_policy("expandable:exchange_rate=0", {.total_bytes = 80 * gib, .page_bytes = page});
  EXPECT_EQ((*free)->page_in(holding(40 * gib, 9 * gib, 10 * gib), 300 * mib, 300 * mib).make_bytes, 300 * mib)
      << "memory is worth no move";
  EXPECT_EQ(find_policy("expandable:exchange_rate=-1").code(), errc::bad_setting);
}

// Single pages can always move; a partly used run cannot.
TEST(Expandable, MakesSinglePagesNearTheLimit) {
  const auto p = with_slack("");
  const auto run = [&](std::uint64_t limit, std::uint64_t free_at_start, std::uint64_t held) {
    pool_view v = holding(held, held, held);
    v.limit_bytes = limit;
    v.free_at_start_bytes = free_at_start;
    return p->page_in(v, 20 * mib, 20 * mib).run_bytes;
  };
  EXPECT_GT(run(80 * gib, 80 * gib, 30 * gib), page);
  EXPECT_EQ(run(80 * gib, 80 * gib, 41 * gib), page) << "beyond half";
  EXPECT_GT(run(24 * gib, 80 * gib, 7 * gib), page);
  EXPECT_EQ(run(24 * gib, 80 * gib, 9 * gib), page) << "the last 16 GiB of a limit";
  EXPECT_EQ(run(80 * gib, 24 * gib, 9 * gib), page) << "or of what was free";
  EXPECT_EQ(run(16 * gib, 80 * gib, 0), page);
}

}  // namespace
}  // namespace gpumem
