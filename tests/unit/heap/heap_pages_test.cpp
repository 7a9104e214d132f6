// Segments with memory behind some of their addresses: backing, taking it away, carving at a place.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "bits.hpp"
#include "heap.hpp"

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

TEST(heap_pages, unbacked_addresses_serve_nobody_and_count_nowhere) {
  paged_heap x;
  EXPECT_EQ(x.take(x.a, 512), no_block);
  EXPECT_EQ(x.h.totals().segment_bytes, 0U);
  EXPECT_EQ(x.h.totals().unbacked_bytes, 64 * page);
  x.sound();
}

TEST(heap_pages, what_is_backed_is_idle_and_merges_with_idle_neighbours) {
  paged_heap x;
  x.commit(4, 2);
  x.commit(8, 1);
  EXPECT_EQ(x.h.totals().idle_bytes, 3 * page);
  EXPECT_EQ(x.h.totals().free_blocks, 2U);
  const block_index joined = x.commit(6, 2);
  EXPECT_EQ(x.h.at(joined).begin, base + 4 * page);
  EXPECT_EQ(x.h.at(joined).bytes, 5 * page);
  EXPECT_EQ(x.h.totals().free_blocks, 1U);
  EXPECT_EQ(x.h.totals().unbacked_bytes, 59 * page);
  x.sound();
}

TEST(heap_pages, memory_goes_from_the_middle_of_an_idle_block_and_unbacked_neighbours_merge) {
  paged_heap x;
  x.commit(0, 8);
  x.h.decommit(x.at(base), base + 2 * page, page);
  x.h.decommit(x.at(base + 4 * page), base + 4 * page, page);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 3U);
  const block_index unbacked = x.h.decommit(x.at(base + 3 * page), base + 3 * page, page);
  EXPECT_EQ(x.h.at(unbacked).begin, base + 2 * page);
  EXPECT_EQ(x.h.at(unbacked).bytes, 3 * page);
  EXPECT_EQ(x.h.totals().segment_bytes, 5 * page);
  x.sound();
}

TEST(heap_pages, vacating_addresses_serve_nobody_and_merge_once_they_are_unbacked) {
  paged_heap x;
  const block_index live = x.h.carve(x.commit(0, 4), 4 * page, 512);
  x.h.at(live).owner = x.a;
  x.h.release(live, x.a, 1, true);
  const block_index leaves = x.h.decommit(x.at(base), base + 2 * page, 2 * page, block_state::vacating);
  x.sound();
  EXPECT_EQ(x.h.totals().segment_bytes, 2 * page);
  EXPECT_EQ(x.h.totals().unbacked_bytes, 62 * page) << "beside unbacked addresses, but no part of them";
  EXPECT_NE(x.at(base + 4 * page), leaves);
  EXPECT_EQ(x.take(x.a, 3 * page), no_block);
  const block_index unbacked = x.h.decommit(leaves, base + 2 * page, 2 * page);
  EXPECT_EQ(x.h.at(unbacked).bytes, 62 * page);
  x.sound();
}

TEST(heap_pages, what_is_backed_for_an_owner_is_its_own_and_merges_with_that) {
  paged_heap x;
  x.h.commit(x.at(base), base, page, x.a, 1);
  const block_index own = x.h.commit(x.at(base + page), base + page, page, x.a, 2);
  EXPECT_EQ(x.h.at(own).bytes, 2 * page);
  EXPECT_EQ(x.h.at(own).in_index.epoch, 2U);
  x.commit(2, 1);
  EXPECT_EQ(x.h.totals().cached_bytes, 2 * page);
  EXPECT_EQ(x.h.totals().idle_bytes, page);
  EXPECT_EQ(x.take(x.b, 2 * page), no_block);
  x.sound();
  const block_index back = x.h.decommit(own, base, page, block_state::vacating);
  x.h.commit(back, base, page, x.a, 3);
  EXPECT_EQ(x.h.totals().cached_bytes, 2 * page) << "a page that did not leave";
  x.sound();
}

TEST(heap_pages, carve_at_takes_own_and_idle_blocks_together_and_leaves_the_rest_to_whom_it_was) {
  paged_heap x;
  x.commit(0, 4);
  const block_index first = x.take(x.a, page);
  x.take(x.b, page);  // stays
  x.h.release(first, x.a, 1, false);
  const block_index second = x.h.carve_at(x.at(base), base + page / 2, page / 4, x.a);
  EXPECT_EQ(x.h.at(second).begin, base + page / 2);
  x.h.at(second).owner = x.a;
  EXPECT_EQ(x.h.at(x.h.at(second).prev).owner, x.a);
  EXPECT_EQ(x.h.at(x.h.at(second).next).owner, x.a);
  x.sound();
  x.h.release(second, x.a, 2, false);
  x.sound();
  EXPECT_EQ(x.h.totals().cached_bytes, page);
}

TEST(heap_pages, lowest_fit_prefers_the_exact_size_and_then_the_lowest_place) {
  paged_heap x;
  x.commit(0, 5);
  x.commit(8, 3);
  x.commit(16, 4);
  EXPECT_EQ(x.h.at(x.h.free_blocks().lowest_fit(0, x.a, 3 * page, 512)).begin, base + 8 * page) << "exact";
  EXPECT_EQ(x.h.at(x.h.free_blocks().lowest_fit(0, x.a, 2 * page, 512)).begin, base)
      << "lowest, though not the smallest";
  EXPECT_EQ(x.h.free_blocks().lowest_fit(0, x.a, 6 * page, 512), no_block);
}

}  // namespace
}  // namespace gpumem
