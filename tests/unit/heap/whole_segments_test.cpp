#include "whole_segments.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t segment_bytes = 100 * mib;

struct one_segment {
  whole_segments all;
  segment_history segment;
  segment_history other;  ///< in which the small blocks live

  void use_whole(unsigned times, std::uint64_t bytes = 60 * mib) {
    for (unsigned k = 0; k < times; ++k)
      all.freed(segment, segment_bytes, bytes, all.made(segment, segment_bytes, bytes));
  }
  void keep_small(unsigned blocks, std::uint64_t bytes = 2 * mib) {
    for (unsigned k = 0; k < blocks; ++k) all.made(other, segment_bytes, bytes);
  }
  void pass_small(unsigned blocks, std::uint64_t bytes = 2 * mib) {
    for (unsigned k = 0; k < blocks; ++k) all.freed(other, segment_bytes, bytes, all.made(other, segment_bytes, bytes));
  }
  [[nodiscard]] bool in_the_way(std::uint64_t bytes = 2 * mib) const {
    return all.in_the_way(segment, segment_bytes, bytes);
  }
};

TEST(whole_segments, blocks_that_stay_are_in_the_way_of_large_requests_that_come_again) {
  one_segment x;
  x.keep_small(4);
  EXPECT_FALSE(x.in_the_way()) << "no large request came";
  x.use_whole(1);
  EXPECT_FALSE(x.in_the_way()) << "nor did one come again";
  x.use_whole(1);
  EXPECT_TRUE(x.in_the_way());
  EXPECT_TRUE(x.in_the_way(3 * mib)) << "sizes between two powers of two";
  EXPECT_FALSE(x.in_the_way(5 * mib)) << "of these sizes nothing is known";
  EXPECT_FALSE(x.in_the_way(50 * mib + 512)) << "large itself";
}

TEST(whole_segments, blocks_that_are_soon_free_again_are_in_nobodys_way) {
  one_segment x;
  x.keep_small(1000);  // such as weights
  x.pass_small(32);
  x.use_whole(1);
  x.pass_small(3);
  x.use_whole(1);
  EXPECT_FALSE(x.in_the_way()) << "they lived for no request on average, the large ones come at every fourth";
  x.keep_small(32);
  x.use_whole(1);
  x.use_whole(1);
  EXPECT_TRUE(x.in_the_way());
}

TEST(whole_segments, halves_of_a_segment_are_small) {
  one_segment x;
  x.keep_small(8);
  x.use_whole(4, 50 * mib);
  EXPECT_FALSE(x.in_the_way());
}

TEST(whole_segments, large_requests_that_ceased_are_not_waited_for) {
  one_segment x;
  x.keep_small(8);
  x.use_whole(1);
  x.keep_small(4);
  x.use_whole(1);  // 5 requests after the one before
  x.keep_small(10);
  EXPECT_TRUE(x.in_the_way());
  x.keep_small(1);
  EXPECT_FALSE(x.in_the_way()) << "11 requests later";
  x.use_whole(1);
  EXPECT_TRUE(x.in_the_way()) << "it came after all";
}

TEST(whole_segments, a_segment_takes_the_place_of_one_that_went_back) {
  for (const std::uint64_t bytes : {99 * mib, 100 * mib, 199 * mib, 200 * mib}) {
    one_segment x;
    x.keep_small(4);
    x.use_whole(2);
    x.all.went(x.other, segment_bytes);
    x.all.went(x.segment, segment_bytes);
    x.segment = x.all.came(bytes);
    EXPECT_EQ(x.all.in_the_way(x.segment, bytes, 2 * mib), bytes >= 100 * mib && bytes < 200 * mib) << bytes;
    x.segment = x.all.came(bytes);
    EXPECT_FALSE(x.all.in_the_way(x.segment, bytes, 2 * mib)) << "only one does";
  }
}

TEST(whole_segments, a_segment_that_is_taken_for_a_small_block_takes_the_place_of_none) {
  one_segment x;
  x.keep_small(4);
  x.use_whole(2);
  x.all.went(x.segment, segment_bytes);
  x.segment = x.all.came(segment_bytes, segment_bytes / 2);
  EXPECT_FALSE(x.in_the_way());
  x.segment = x.all.came(segment_bytes, segment_bytes / 2 + 512);
  EXPECT_TRUE(x.in_the_way());
}

TEST(whole_segments, only_a_block_of_at_most_a_quarter_is_in_the_way) {
  one_segment x;
  x.use_whole(2);
  for (const std::uint64_t bytes : {segment_bytes / 4, segment_bytes / 4 + 512}) {
    for (int k = 0; k < 4; ++k) x.all.made(x.other, segment_bytes, bytes);
  }
  x.use_whole(2);
  EXPECT_TRUE(x.all.in_the_way(x.segment, segment_bytes, segment_bytes / 4));
  EXPECT_FALSE(x.all.in_the_way(x.segment, segment_bytes, segment_bytes / 4 + 512));
}

TEST(whole_segments, a_segment_with_a_small_block_is_not_whole) {
  one_segment x;
  x.keep_small(4);
  x.use_whole(2);
  ASSERT_TRUE(x.in_the_way());
  const std::uint32_t born = x.all.made(x.segment, segment_bytes, 2 * mib);
  EXPECT_FALSE(x.in_the_way()) << "another small block costs nothing";
  x.all.freed(x.segment, segment_bytes, 2 * mib, born);
  EXPECT_TRUE(x.in_the_way());
}

}  // namespace
}  // namespace gpumem
