#include "best_fit.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

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

/// Small blocks stay, and large ones of a segment's size come again and again.
struct segments_of_large_requests {
  heap h{1};
  std::vector<block_index> small;
  explicit segments_of_large_requests(std::initializer_list<std::uint64_t> large_bytes) {
    h.add_segment(gib, 8 * mib, 0);
    for (int k = 0; k < 8; ++k) small.push_back(take({}, mib));
    std::uint64_t begin = 2 * gib;
    std::vector<block_index> blocks;
    for (const std::uint64_t bytes : large_bytes) {
      h.add_segment(begin, bytes, 0);
      begin += gib;
    }
    for (int k = 0; k < 2; ++k) {
      for (const std::uint64_t bytes : large_bytes) blocks.push_back(take({}, bytes));
      for (; !blocks.empty(); blocks.pop_back()) h.release(blocks.back(), idle_owner, 0, true);
    }
  }
  block_index take(const best_fit& rule, std::uint64_t bytes, bool may_divide = false) {
    return rule.take(h, {.bytes = bytes, .may_divide = may_divide});
  }
  /// The GiB in which the block of 1 MiB lies; 0 if none fits.
  std::uint64_t place(bool may_divide = false) {
    const block_index i = take({.keeps_segments_whole = true}, mib, may_divide);
    EXPECT_TRUE(h.validate().ok()) << h.validate().message();
    return i == no_block ? 0 : h.at(i).begin / gib;
  }
};

TEST(best_fit, keeps_the_segment_whole_to_which_large_requests_come) {
  segments_of_large_requests x{100 * mib};
  EXPECT_EQ(x.place(), 0U);
  EXPECT_EQ(x.place(true), 2U) << "where the pool cannot grow";
  EXPECT_EQ(x.place(), 2U) << "it is divided already";
}

TEST(best_fit, keeps_only_the_largest_of_such_segments_whole) {
  segments_of_large_requests x{100 * mib, 90 * mib, 100 * mib};
  EXPECT_EQ(x.place(), 3U);
  segments_of_large_requests same{100 * mib, 100 * mib};
  EXPECT_EQ(same.place(), 2U);
}

TEST(best_fit, prefers_a_segment_that_need_not_stay_whole) {
  segments_of_large_requests x{100 * mib};
  x.h.add_segment(5 * gib, 200 * mib, 0);
  EXPECT_EQ(x.place(), 5U) << "although it is larger";
  x.h.release(x.small.back(), idle_owner, 0, true);
  EXPECT_EQ(x.place(), 1U) << "the best fit";
}

}  // namespace
}  // namespace gpumem
