#include "best_fit.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

/// Two idle segments: 3 MiB below, 2 MiB above.
struct two_segments {
  heap h{1};
  owner_id mine = h.add_owner();
  two_segments() {
    h.add_segment(64 * mib, 3 * mib, 0);
    h.add_segment(128 * mib, 2 * mib, 0);
  }
  /// The address of the block; 0 if nothing fits.
  std::uint64_t take(const best_fit& rule, std::uint64_t bytes, std::uint64_t alignment = 512,
                     idle_memory idle = idle_memory::alike) {
    const block_index i = rule.take(h, {mine, 0, bytes, alignment, idle});
    if (i == no_block) return 0;
    EXPECT_EQ(h.at(i).state, block_state::live);
    EXPECT_EQ(h.at(i).bytes, bytes);
    return h.at(i).begin;
  }
};

TEST(best_fit, takes_the_smallest_block_that_fits) {
  two_segments x;
  EXPECT_EQ(x.take({}, mib), 128 * mib);
  EXPECT_EQ(x.take({}, mib), 129 * mib);
  EXPECT_EQ(x.take({}, mib), 64 * mib);
}

TEST(best_fit, takes_nothing_where_nothing_is_large_enough) {
  two_segments x;
  EXPECT_EQ(x.take({.upper_end_bytes = UINT64_MAX, .upper_end_pool_bytes = gib}, 4 * mib), 0U);
  EXPECT_EQ(x.h.totals().live_bytes, 0U);
}

TEST(best_fit, takes_the_lowest_place_for_large_requests_of_a_paged_pool) {
  const best_fit paged{.lowest_fit_bytes = mib};
  two_segments x;
  EXPECT_EQ(x.take(paged, mib - 512), 128 * mib);
  EXPECT_EQ(x.take(paged, mib), 64 * mib);
}

/// The owner's own 1 MiB and the idle memory behind it have room only together.
TEST(best_fit, joins_idle_memory_for_large_requests_unless_it_must_stay_apart) {
  const best_fit paged{.lowest_fit_bytes = 3 * mib};
  two_segments x;
  const block_index own = x.h.carve(x.h.free_blocks().best_fit(0, x.mine, true, 3 * mib, 512), mib, 512);
  ASSERT_EQ(x.h.at(own).begin, 64 * mib);
  x.h.at(own).owner = x.mine;
  x.h.release(own, x.mine, 1, false);
  EXPECT_EQ(x.take(paged, 3 * mib, 512, idle_memory::last), 0U);
  EXPECT_EQ(x.take(paged, 3 * mib, 512, idle_memory::alike), 0U);
  EXPECT_EQ(x.take(paged, 3 * mib, 512, idle_memory::joined), 64 * mib);
}

/// The owner has a segment of 2 MiB and 512 bytes. Idle memory would fit better, or lies lower.
TEST(best_fit, takes_idle_memory_last_where_other_owners_need_it) {
  for (const std::uint64_t lowest_fit_bytes : {UINT64_MAX, mib}) {
    const best_fit rule{.lowest_fit_bytes = lowest_fit_bytes};
    two_segments x;
    x.h.add_segment(192 * mib, 2 * mib + 512, 0);
    const block_index own =
        x.h.carve(x.h.free_blocks().best_fit(0, x.mine, true, 2 * mib + 512, 512), 2 * mib + 512, 512);
    ASSERT_EQ(x.h.at(own).begin, 192 * mib);
    x.h.at(own).owner = x.mine;
    x.h.release(own, x.mine, 1, false);
    EXPECT_EQ(x.take(rule, mib, 512, idle_memory::last), 192 * mib);
    EXPECT_EQ(x.take(rule, mib + 512, 512, idle_memory::last), 193 * mib);
    EXPECT_NE(x.take(rule, mib, 512, idle_memory::last), 0U) << "idle memory, where the owner has none";
  }
}

/// The owner's block holds the request only because it begins at the alignment.
TEST(best_fit, takes_an_aligned_block_of_the_owner_before_idle_memory) {
  two_segments x;
  x.h.add_segment(192 * mib, 4 * mib, 0);
  const block_index own = x.h.carve(x.h.free_blocks().best_fit(0, x.mine, true, 4 * mib, 512), 2 * mib, 512);
  ASSERT_EQ(x.h.at(own).begin, 192 * mib);
  x.h.at(own).owner = x.mine;
  x.h.release(own, x.mine, 1, false);
  EXPECT_EQ(x.take({.lowest_fit_bytes = mib}, 2 * mib - 512, mib, idle_memory::last), 192 * mib);
}

TEST(best_fit, takes_the_upper_end_for_small_requests_of_a_small_paged_pool) {
  const best_fit paged{.upper_end_bytes = 64 * kib, .upper_end_pool_bytes = 8 * mib};
  two_segments x;
  EXPECT_EQ(x.take(paged, 4 * kib), 130 * mib - 4 * kib);
  EXPECT_EQ(x.take(paged, 64 * kib), 128 * mib) << "not small";
  EXPECT_EQ(x.take(paged, 4 * kib, 4 * kib), 128 * mib + 64 * kib) << "an alignment of its own";
  const best_fit full{.upper_end_bytes = 64 * kib, .upper_end_pool_bytes = 5 * mib};
  EXPECT_EQ(x.take(full, 4 * kib), 128 * mib + 68 * kib) << "the pool holds as much";
}

}  // namespace
}  // namespace gpumem
