#include "page_place.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
constexpr std::uint64_t base = 64 * page;

struct paged_heap {
  heap h{1};
  owner_id a = h.add_owner();
  owner_id b = h.add_owner();
  explicit paged_heap(std::uint64_t pages = 64) { h.add_segment(base, pages * page, 0, false); }

  [[nodiscard]] block_index at(std::uint64_t position) const { return h.containing(position); }
  block_index commit(std::uint64_t first, std::uint64_t pages) {
    return h.commit(at(base + first * page), base + first * page, pages * page);
  }
  block_index take(owner_id o, std::uint64_t bytes) {
    const block_index from = h.free_blocks().best_fit(0, o, true, bytes, 512);
    if (from == no_block) return no_block;
    const block_index i = h.carve(from, bytes, 512);
    h.at(i).owner = o;
    return i;
  }
  void sound() const { ASSERT_TRUE(h.validate().ok()) << h.validate().message(); }
};

TEST(page_place, is_where_the_fewest_pages_are_missing) {
  paged_heap x;
  x.commit(0, 2);
  const block_index wall = x.h.carve_at(x.at(base), base, page, x.b);  // in use: nothing goes through it
  x.commit(10, 3);
  const auto at = cheapest_place(x.h, 0, x.a, 4 * page, 512, page);
  ASSERT_TRUE(at);
  EXPECT_EQ(at->missing_bytes, page);
  EXPECT_EQ(at->begin, base + 9 * page) << "of equals the lowest";
  const auto pieces = missing_pieces(x.h, *at, 4 * page, page);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].begin, base + 9 * page);
  EXPECT_EQ(pieces[0].bytes, page);
  x.h.release(wall, x.b, 1, false);
}

TEST(page_place, is_none_where_no_span_is_long_enough) {
  paged_heap x{8};
  x.commit(3, 1);
  x.h.carve_at(x.at(base + 3 * page), base + 3 * page, page, x.b);
  EXPECT_TRUE(cheapest_place(x.h, 0, x.a, 4 * page, 512, page));
  EXPECT_FALSE(cheapest_place(x.h, 0, x.a, 5 * page, 512, page));
}

// Against a search that tries every position: random heaps, random requests. A span without an unbacked page is not
// looked at, since best fit serves it.
TEST(page_place, agrees_with_trying_every_position) {
  constexpr std::uint64_t step = page / 4;
  constexpr std::uint64_t end = base + 24 * page;
  std::mt19937_64 random{7};
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int round = 0; round < 200; ++round) {
    paged_heap x{24};
    std::vector<bool> has(24);
    for (int k = 0; k < 12; ++k) {
      const std::uint64_t p = below(24);
      if (!has[p]) x.commit(p, 1);
      has[p] = true;
    }
    for (int k = 0; k < 6; ++k) {
      const owner_id o = below(2) != 0 ? x.a : x.b;
      x.take(o, (1 + below(8)) * step);
    }
    x.sound();
    const auto state = [&](std::uint64_t p) { return x.h.at(x.at(p)).state; };
    const std::uint64_t bytes = (1 + below(20)) * step;
    std::uint64_t best = UINT64_MAX;
    for (std::uint64_t begin = base; begin + bytes <= end; begin += step) {
      std::set<std::uint64_t> missing;
      bool fits = true;
      for (std::uint64_t p = begin; p < begin + bytes; p += step) {
        if (state(p) == block_state::live) fits = false;
        if (state(p) == block_state::unbacked) missing.insert(p / page);
      }
      bool looked_at = !missing.empty();
      for (std::uint64_t p = begin; p > base && state(p - step) != block_state::live; p -= step)
        looked_at = looked_at || state(p - step) == block_state::unbacked;
      for (std::uint64_t p = begin + bytes; p < end && state(p) != block_state::live; p += step)
        looked_at = looked_at || state(p) == block_state::unbacked;
      if (fits && looked_at) best = std::min<std::uint64_t>(best, missing.size() * page);
    }
    const auto at = cheapest_place(x.h, 0, x.a, bytes, 512, page);
    ASSERT_EQ(at.has_value(), best != UINT64_MAX) << "round " << round;
    if (!at) continue;
    EXPECT_EQ(at->missing_bytes, best) << "round " << round;
    std::uint64_t pieces = 0;
    for (const unbacked_piece& piece : missing_pieces(x.h, *at, bytes, page)) pieces += piece.bytes;
    EXPECT_EQ(pieces, at->missing_bytes);
  }
}

}  // namespace
}  // namespace gpumem
