// The sketch behaves as the heap and the pool do, and of two places the one with fewer moves to come is found.
#include "rollout.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "bits.hpp"
#include "heap.hpp"
#include "page_place.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
constexpr std::uint64_t base = 64 * page;
constexpr unsigned pages = 64;

std::uint64_t whatever_is_missing(const page_supply&, std::uint64_t, std::uint64_t missing) { return missing; }
std::uint64_t nothing_new(const page_supply&, std::uint64_t, std::uint64_t) { return 0; }

struct paged_heap {
  heap h{1};
  owner_id mine = h.add_owner();
  owner_id other = h.add_owner();
  std::uint32_t epoch = 0;
  explicit paged_heap(unsigned segments = 1) {
    for (unsigned k = 0; k < segments; ++k) h.add_segment(base + k * pages * page, pages * page, 0, false);
  }
  void commit(std::uint64_t begin, std::uint64_t bytes) { h.commit(h.containing(begin), begin, bytes); }
  block_index take_at(std::uint64_t begin, std::uint64_t bytes, owner_id o) {
    return h.carve_at(h.containing(begin), begin, bytes, o);
  }
  /// As a pool places a large request, everything that is missing made new.
  block_index take(std::uint64_t bytes) {
    if (const block_index from = h.lowest_fit(0, mine, bytes, 512); from != no_block) {
      return take_at(h.at(from).begin, bytes, mine);
    }
    const std::optional<page_place> at = cheapest_place(h, 0, mine, bytes, 512, page);
    if (!at) return no_block;
    for (const unbacked_piece& p : missing_pieces(h, *at, bytes, page)) commit(p.begin, p.bytes);
    return take_at(at->begin, bytes, mine);
  }
  [[nodiscard]] page_sketch sketch(bool others_too = false) const {
    return {h, 0, {true, true, others_too}, page, 1000};
  }
};

TEST(page_sketch, places_requests_where_the_pool_would) {
  std::mt19937 random{7};
  paged_heap x{2};
  page_supply supply;
  page_sketch kept = x.sketch();
  std::vector<block_index> live;
  for (int k = 0; k < 3000; ++k) {
    if (!live.empty() && (random() % 2 == 0 || live.size() > 24)) {
      const std::size_t which = random() % live.size();
      const block b = x.h.at(live[which]);
      kept.free(b.begin, b.bytes, &supply);
      x.h.release(live[which], x.mine, ++x.epoch, true);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      const std::uint64_t bytes = (1 + random() % 20) * page / 2 + random() % 3 * 512;
      const std::optional<std::uint64_t> expected = kept.usual_place(bytes);
      EXPECT_EQ(expected, x.sketch().usual_place(bytes)) << "a sketch that went along, and a new one";
      const block_index i = x.take(bytes);
      ASSERT_EQ(expected.has_value(), i != no_block);
      if (i == no_block) continue;
      ASSERT_EQ(*expected, x.h.at(i).begin) << k;
      EXPECT_EQ(kept.place(*expected, bytes, &supply, whatever_is_missing), 0U);
      live.push_back(i);
      EXPECT_EQ(supply.live_bytes, x.h.totals().live_bytes);
      EXPECT_EQ(supply.reserved_bytes, x.h.totals().segment_bytes);
    }
    const page_sketch made_anew = x.sketch();
    ASSERT_EQ(kept.size(), made_anew.size());
    const std::uint64_t at = base + random() % (pages * page);
    EXPECT_EQ(kept.missing(at, page), made_anew.missing(at, page));
    EXPECT_EQ(kept.open(at, page), made_anew.open(at, page));
    EXPECT_EQ(kept.places(4 * page), made_anew.places(4 * page));
  }
}

TEST(page_sketch, what_may_not_be_made_moves_from_the_shortest_idle_stretches) {
  paged_heap x;
  x.commit(base, 10 * page);
  static_cast<void>(x.take_at(base + 2 * page, page, x.mine));  // idle: [0, 2), [3, 10)
  page_sketch s = x.sketch();
  page_supply supply{.live_bytes = page, .peak_live_bytes = page, .reserved_bytes = 10 * page};
  const std::uint64_t at = *s.usual_place(8 * page);
  EXPECT_EQ(at, base + 3 * page) << "one page is missing there, at its end";
  EXPECT_EQ(s.place(at, 8 * page, &supply, nothing_new), page);
  EXPECT_EQ(supply.reserved_bytes, 10 * page);
  EXPECT_EQ(s.missing(base, 2 * page), page);
}

TEST(page_sketch, of_what_is_free_for_others_nothing_is_free_unless_that_is_asked_for) {
  paged_heap x;
  x.commit(base, 4 * page);
  const block_index i = x.take_at(base, 2 * page, x.other);
  x.h.release(i, x.other, 1, false);
  EXPECT_FALSE(x.sketch().open(base, 4 * page));
  EXPECT_TRUE(x.sketch(true).open(base, 4 * page));
}

TEST(page_sketch, what_can_neither_be_made_nor_moved_counts_as_moved) {
  paged_heap x;
  x.commit(base, 4 * page);
  page_sketch s = x.sketch();
  page_supply supply;
  EXPECT_EQ(s.place(base, 6 * page, &supply, nothing_new), 2 * page);
}

TEST(page_sketch, ends_where_there_are_too_many_extents) {
  paged_heap x;
  x.commit(base, 40 * page);
  for (unsigned k = 0; k < 40; k += 2) static_cast<void>(x.take_at(base + k * page, page, x.mine));
  EXPECT_GT(x.sketch().size(), 40U);
  EXPECT_EQ((page_sketch{x.h, 0, {true, true}, page, 10}.size()), 11U);
}

struct holes : paged_heap {
  // Four idle pages, one in use, three idle ones, one in use, and addresses with nothing behind them.
  holes() {
    commit(base, 9 * page);
    static_cast<void>(take_at(base + 4 * page, page, mine));
    static_cast<void>(take_at(base + 8 * page, page, mine));
  }
  page_supply supply{.live_bytes = 2 * page, .peak_live_bytes = 9 * page, .reserved_bytes = 9 * page};
  [[nodiscard]] std::optional<std::uint64_t> better(std::uint64_t usual, std::uint64_t bytes,
                                                    const std::vector<expected_step>& expected,
                                                    std::uint64_t most_looks = 100'000) const {
    const page_sketch now = sketch();
    return better_place(now, now.places(bytes), usual, bytes, expected, supply, nothing_new, most_looks);
  }
};

TEST(better_place, leaves_the_hole_that_is_wanted_next) {
  const holes x;
  const std::vector<expected_step> four{{.is = expected_step::kind::request, .bytes = 4 * page}};
  EXPECT_EQ(x.better(base, 2 * page, four), base + 5 * page);
}

TEST(better_place, is_not_sought_beyond_what_it_may_cost) {
  const holes x;
  const std::vector<expected_step> four(20, {.is = expected_step::kind::request, .bytes = 4 * page});
  EXPECT_EQ(x.better(base, 2 * page, four, 1), std::nullopt);
  EXPECT_TRUE(x.better(base, 2 * page, four).has_value());
}

TEST(better_place, is_none_where_nothing_would_move) {
  const holes x;
  EXPECT_EQ(x.better(base, 2 * page, {}), std::nullopt);
  const std::vector<expected_step> freed_first{{.is = expected_step::kind::free_requested},
                                               {.is = expected_step::kind::request, .bytes = 4 * page}};
  EXPECT_EQ(x.better(base, 2 * page, freed_first), std::nullopt);
}

TEST(better_place, is_where_the_next_requests_fit_between_what_they_lay_beside_before) {
  const holes x;
  // By the usual manner three pages go to the lowest hole, and four find none; where they lay before, all is well.
  std::vector<expected_step> expected{{.is = expected_step::kind::request, .bytes = 2 * page},
                                      {.is = expected_step::kind::request, .bytes = 4 * page}};
  EXPECT_EQ(x.better(base + 5 * page, page, expected), std::nullopt) << "by either place two go to the lowest hole";
  expected[0].lay = {base + 6 * page, 0};
  const std::optional<std::uint64_t> at = x.better(base, page, expected);
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(*at, base + 5 * page);
}

}  // namespace
}  // namespace gpumem
