#include "stream_cache.hpp"

#include <gtest/gtest.h>

#include <set>

namespace gpumem {
namespace {

TEST(bin_places, small_sizes_have_one_each_and_all_are_in_range) {
  std::set<std::uint32_t> exact;
  for (std::uint32_t units = 1; units <= bin_places::exact; ++units) {
    EXPECT_TRUE(exact.insert(bin_places::of(units)).second) << units;
  }
  std::set<std::uint32_t> shared;
  for (std::uint32_t units = bin_places::exact + 1; units < 100'000; ++units) {
    const std::uint32_t place = bin_places::of(units);
    ASSERT_GE(place, bin_places::exact);
    ASSERT_LT(place, bin_places::all);
    ASSERT_GE(bin_places::second_choice(place), bin_places::exact);
    ASSERT_LT(bin_places::second_choice(place), bin_places::all);
    ASSERT_NE(bin_places::second_choice(place), place);
    ASSERT_EQ(bin_places::second_choice(bin_places::second_choice(place)), place);
    shared.insert(place);
  }
  EXPECT_EQ(shared.size(), bin_places::shared) << "all of them are used";
  EXPECT_LT(bin_places::of(UINT32_MAX), bin_places::all);
}

TEST(stream_cache, a_bin_is_of_one_size_and_last_in_first_out) {
  stream_cache s{3, 77};
  EXPECT_EQ(s.owner(), 3U);
  EXPECT_EQ(s.key(), 77U);
  EXPECT_EQ(s.find(4), nullptr) << "of no size yet";
  stream_cache::bin& bin = s.bin_to_change(4);
  s.open(bin, 4, 8);
  ASSERT_EQ(s.find(4), &bin);
  EXPECT_EQ(s.find(5), nullptr);
  EXPECT_EQ(bin.count, 0U);
  EXPECT_EQ(bin.most, 8U);
  for (slot_index i = 10; i < 18; ++i) bin.push(i);
  EXPECT_EQ(bin.count, 8U);
  EXPECT_EQ(bin.held[0], 10U);
  bin.drop_oldest(3);
  EXPECT_EQ(bin.count, 5U);
  for (slot_index i = 18; i-- > 13;) EXPECT_EQ(bin.pop(), i);
  EXPECT_EQ(bin.count, 0U);
}

TEST(stream_cache, takes_a_batch_in_the_order_of_its_frees) {
  stream_cache s{1, 0};
  stream_cache::bin& bin = s.at(bin_places::of(8));
  s.open(bin, 8, stream_cache::room);
  const std::array<slot_index, 3> from_another{10, 20, 30};
  bin.fill_reversed(from_another);
  ASSERT_EQ(bin.count, 3U);
  for (const slot_index i : from_another) EXPECT_EQ(bin.pop(), i);
}

TEST(stream_cache, a_bin_knows_the_fewest_that_it_held) {
  stream_cache s{1, 0};
  stream_cache::bin& bin = s.at(bin_places::of(8));
  s.open(bin, 8, 8);
  for (slot_index i = 0; i < 6; ++i) bin.push(i);
  bin.unused = bin.count;
  static_cast<void>(bin.pop());
  static_cast<void>(bin.pop());
  bin.push(9);
  EXPECT_EQ(bin.unused, 4U);
  bin.drop_oldest(3);
  EXPECT_EQ(bin.unused, 1U) << "of the four, three went";
}

// Above 64 KiB a size may be in either of two bins; a third size takes the one that holds less.
TEST(stream_cache, sizes_that_share_have_a_choice_of_two) {
  constexpr std::uint32_t a = 1000;
  const auto shares = [](std::uint32_t units) {
    return bin_places::of(units) == bin_places::of(a) ||
           bin_places::of(units) == bin_places::second_choice(bin_places::of(a));
  };
  std::uint32_t b = a + 1;
  while (!shares(b)) ++b;
  std::uint32_t c = b + 1;
  while (!shares(c)) ++c;

  stream_cache s{1, 0};
  stream_cache::bin& of_a = s.bin_to_change(a);
  s.open(of_a, a, 8);
  of_a.push(1);
  of_a.push(2);
  stream_cache::bin& of_b = s.bin_to_change(b);
  ASSERT_NE(&of_b, &of_a) << "the other of the two: the first holds something";
  s.open(of_b, b, 8);
  of_b.push(3);
  EXPECT_EQ(s.find(a), &of_a);
  EXPECT_EQ(s.find(b), &of_b);
  EXPECT_EQ(s.find(c), nullptr);
  EXPECT_EQ(&s.bin_to_change(c), &of_b) << "it holds less";
  EXPECT_EQ(of_b.pop(), 3U);
  s.open(of_b, c, 8);
  EXPECT_EQ(s.find(c), &of_b);
  EXPECT_EQ(s.find(b), nullptr);
}

// Whatever is asked for: an allocation looks at no size before.
TEST(stream_cache, finds_no_bin_for_what_none_is_of) {
  stream_cache s{1, 0};
  for (const std::uint32_t units : {1U, 7U, 128U, 129U, 4096U, UINT32_MAX}) {
    EXPECT_EQ(s.find(units), nullptr);
    s.open(s.bin_to_change(units), units, 8);
    ASSERT_NE(s.find(units), nullptr);
    EXPECT_EQ(s.find(units)->units, units);
  }
  for (const std::uint64_t none :
       {std::uint64_t{UINT32_MAX} + 1, std::uint64_t{UINT32_MAX} + 2, std::uint64_t{1} << 55, UINT64_MAX}) {
    EXPECT_EQ(s.find(none), nullptr) << none;
  }
  const stream_cache::bin* const of_none = s.find(0);
  EXPECT_TRUE(of_none == nullptr || of_none->most == 0) << "takes nothing";
}

TEST(stream_cache, lists_the_bins_in_use_in_order) {
  stream_cache s{1, 0};
  EXPECT_EQ(s.next_in_use(0), stream_cache::no_bin);
  const std::set<std::uint32_t> places{0, 63, 64, 127, 200, bin_places::all - 1};
  for (const std::uint32_t p : places) s.open(s.at(p), p + 1, 4);
  std::set<std::uint32_t> seen;
  for (std::uint32_t at = s.next_in_use(0); at != stream_cache::no_bin; at = s.next_in_use(at + 1)) {
    EXPECT_TRUE(seen.insert(at).second);
  }
  EXPECT_EQ(seen, places);
  s.close(s.at(64));
  EXPECT_EQ(s.next_in_use(64), 127U);
  EXPECT_EQ(s.at(64).most, 0U) << "takes nothing in until it is opened again";
  s.close(s.at(bin_places::all - 1));
  EXPECT_EQ(s.next_in_use(201), stream_cache::no_bin);
}

}  // namespace
}  // namespace gpumem
