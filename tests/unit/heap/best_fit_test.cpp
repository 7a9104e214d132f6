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
  [[nodiscard]] free_place find(const best_fit& in, std::uint64_t bytes, std::uint64_t alignment = 512) const {
    return in.find(h, {.owner = mine, .segment_class = 0, .bytes = bytes, .alignment = alignment});
  }
  [[nodiscard]] std::uint64_t begin(const free_place& p) const { return h.at(p.block).begin; }
};

TEST(best_fit, is_the_smallest_block_that_fits) {
  const two_segments x;
  const free_place p = x.find(best_fit{}, mib);
  ASSERT_NE(p.block, no_block);
  EXPECT_EQ(x.begin(p), 128 * mib);
  EXPECT_FALSE(p.upper_end);
}

TEST(best_fit, is_none_where_nothing_is_large_enough) {
  const two_segments x;
  const free_place p = x.find(best_fit{{.upper_end_bytes = UINT64_MAX, .upper_end_pool_bytes = gib}}, 4 * mib);
  EXPECT_EQ(p.block, no_block);
  EXPECT_FALSE(p.upper_end);
}

TEST(best_fit, is_the_lowest_place_for_large_requests_of_a_paged_pool) {
  const two_segments x;
  const best_fit paged{{.range_bytes = gib, .lowest_fit_bytes = mib}};
  EXPECT_TRUE(paged.takes_lowest(mib));
  EXPECT_FALSE(paged.takes_lowest(mib - 512));
  EXPECT_EQ(x.begin(x.find(paged, mib)), 64 * mib);
  EXPECT_EQ(x.begin(x.find(paged, mib - 512)), 128 * mib);
}

TEST(best_fit, takes_the_upper_end_for_small_requests_of_a_small_paged_pool) {
  const two_segments x;
  const best_fit paged{{.range_bytes = gib, .upper_end_bytes = 64 * kib, .upper_end_pool_bytes = 8 * mib}};
  EXPECT_TRUE(x.find(paged, 4 * kib).upper_end);
  EXPECT_FALSE(x.find(paged, 64 * kib).upper_end) << "not small";
  EXPECT_FALSE(x.find(paged, 4 * kib, 4 * kib).upper_end) << "an alignment of its own";
  const best_fit full{{.range_bytes = gib, .upper_end_bytes = 64 * kib, .upper_end_pool_bytes = 5 * mib}};
  EXPECT_FALSE(x.find(full, 4 * kib).upper_end) << "the pool holds as much";
}

}  // namespace
}  // namespace gpumem
