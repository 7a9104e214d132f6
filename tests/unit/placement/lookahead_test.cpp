#include "lookahead.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
constexpr std::uint64_t base = 64 * page;

/// Eight of 64 pages have memory behind them: a hole of four, one in use, a hole of two, one in use. A step is
/// remembered that asks for two pages and then for four.
struct repeating_pool {
  heap h{1};
  owner_id mine = h.add_owner();
  lookahead ahead{2 * page};
  repeating_pool() {
    h.add_segment(base, 64 * page, 0, false);
    h.commit(h.containing(base), base, 8 * page);
    for (const std::uint64_t used : {base + 4 * page, base + 7 * page})
      h.carve_at(h.containing(used), used, page, mine);
    for (int step = 0; step < 8; ++step) {
      const std::uint64_t two = base + 5 * page;
      ahead.placed(ahead.requested(2 * page), two);
      ahead.placed(ahead.requested(4 * page), base);
      ahead.freed(two);
      ahead.freed(base);
    }
  }
  [[nodiscard]] std::optional<page_place> look(large_requests::number n, std::uint64_t usual, bool at_once) const {
    const lookahead::pool_now now{
        .page_bytes = page,
        .free_now = {true, true},
        .free_soon = {true, true},
        .supply = {},
        .make = [](const page_supply&, std::uint64_t, std::uint64_t) { return std::uint64_t{0}; }};
    return ahead.better_place(h, {.owner = mine, .klass = 0, .bytes = 2 * page}, n, usual, now, at_once);
  }
};

TEST(lookahead, is_for_large_requests_of_pools_that_ask_for_it) {
  EXPECT_FALSE(lookahead{}.is_large(std::uint64_t{1} << 40));
  EXPECT_TRUE(lookahead{mib}.is_large(mib));
  EXPECT_FALSE(lookahead{mib}.is_large(mib - 512));
}

TEST(lookahead, sleeps_until_pages_move_and_again_when_none_moves_for_long) {
  repeating_pool x;
  large_requests::number n = x.ahead.requested(2 * page);
  EXPECT_NE(n, 0U);
  EXPECT_FALSE(x.ahead.is_worth(n, x.h)) << "no page has moved";
  x.ahead.wake();
  EXPECT_TRUE(x.ahead.is_worth(n, x.h));
  EXPECT_FALSE(x.ahead.is_worth(0, x.h)) << "nothing was asked";
  for (int k = 0; k < 1000; ++k) n = x.ahead.requested(2 * page);
  EXPECT_TRUE(x.ahead.is_worth(n, x.h));
  n = x.ahead.requested(2 * page);
  EXPECT_FALSE(x.ahead.is_worth(n, x.h));
  x.ahead.wake();
  EXPECT_TRUE(x.ahead.is_worth(n, x.h));
  x.ahead.sleep();
  EXPECT_FALSE(x.ahead.is_worth(n, x.h));
  EXPECT_GT(x.ahead.metadata_bytes(), 0U);
}

TEST(lookahead, knows_nothing_of_what_never_came_before) {
  repeating_pool x;
  EXPECT_FALSE(x.look(x.ahead.requested(3 * page), base, true));
}

TEST(lookahead, names_the_place_that_leaves_the_hole_which_is_wanted_next) {
  for (const bool at_once : {false, true}) {
    repeating_pool x;
    const large_requests::number n = x.ahead.requested(2 * page);
    const std::optional<page_place> better = x.look(n, base, at_once);
    ASSERT_TRUE(better);
    EXPECT_EQ(better->begin, base + 5 * page);
    EXPECT_EQ(better->missing_bytes, 0U);
    EXPECT_EQ(better->first, x.h.containing(base + 5 * page));
    EXPECT_FALSE(x.look(n, base + 5 * page, at_once)) << "it is the usual one";
  }
}

TEST(lookahead, gives_up_on_a_heap_that_it_would_take_too_long_to_look_at) {
  repeating_pool x;
  x.h.add_segment(base + 1024 * page, 600 * mib, 0);
  for (std::uint64_t k = 0; k < 300; ++k) {  // 600 extents
    const std::uint64_t begin = base + 1024 * page + k * page + 512;
    x.h.carve_at(x.h.containing(begin), begin, 512, x.mine);
  }
  EXPECT_FALSE(x.look(x.ahead.requested(2 * page), base, true));
}

}  // namespace
}  // namespace gpumem
