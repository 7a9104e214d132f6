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
    ASSERT_GE(bin_places::beside(place), bin_places::exact);
    ASSERT_LT(bin_places::beside(place), bin_places::all);
    ASSERT_NE(bin_places::beside(place), place);
    ASSERT_EQ(bin_places::beside(bin_places::beside(place)), place);
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
  for (claim_index i = 10; i < 18; ++i) bin.push(i);
  EXPECT_EQ(bin.count, 8U);
  EXPECT_EQ(bin.held[0], 10U);
  bin.drop_oldest(3);
  EXPECT_EQ(bin.count, 5U);
  for (claim_index i = 18; i-- > 13;) EXPECT_EQ(bin.pop(), i);
  EXPECT_EQ(bin.count, 0U);
}

// Of small blocks, once its owner has allowed it: the oldest of a full bin, and the latest batch comes back first.
TEST(stream_cache, a_full_bin_sets_whole_batches_aside) {
  constexpr claim_index batch = stream_cache::batch;
  stream_cache s{1, 0};
  stream_cache::bin& bin = s.at(bin_places::of(8));
  s.open(bin, 8, stream_cache::room);
  claim_index next = 0;
  const auto fill = [&] {
    while (bin.count < stream_cache::room) bin.push(next++);
  };
  fill();
  stream_cache::stack* const beside = s.beside(bin);
  ASSERT_NE(beside, nullptr);
  EXPECT_FALSE(s.set_aside(bin)) << "nothing is allowed yet";
  beside->allowed = 2;
  ASSERT_TRUE(s.set_aside(bin));
  EXPECT_EQ(bin.count, stream_cache::room - batch);
  EXPECT_EQ(bin.held[0], batch) << "the oldest went";
  EXPECT_TRUE(bin.piles_up());
  EXPECT_FALSE(s.set_aside(bin)) << "not full";
  fill();
  ASSERT_TRUE(s.set_aside(bin));
  fill();
  EXPECT_FALSE(s.set_aside(bin)) << "as many as are allowed";
  EXPECT_EQ(beside->count, 2U);

  EXPECT_TRUE(bin.piles_up());
  while (bin.count != 0) EXPECT_EQ(bin.pop(), --next);
  EXPECT_FALSE(bin.piles_up());
  ASSERT_TRUE(s.take_from_beside(bin));
  for (claim_index i = 2 * batch; i-- > batch;) EXPECT_EQ(bin.pop(), i);
  ASSERT_TRUE(s.take_from_beside(bin));
  for (claim_index i = batch; i-- > 0;) EXPECT_EQ(bin.pop(), i);
  EXPECT_FALSE(s.take_from_beside(bin));
  s.close(bin);
  EXPECT_EQ(beside->allowed, 0U) << "what is opened anew has to be allowed anew";
  EXPECT_EQ(s.beside(s.at(bin_places::of(9))), nullptr) << "a block of more than 4 KiB";
}

TEST(stream_cache, gives_the_oldest_batches_away_and_takes_others_in_their_order) {
  constexpr claim_index batch = stream_cache::batch;
  stream_cache s{1, 0};
  stream_cache::bin& bin = s.at(bin_places::of(8));
  s.open(bin, 8, stream_cache::room);
  stream_cache::stack& beside = *s.beside(bin);
  beside.allowed = 3;
  claim_index next = 0;
  for (int k = 0; k < 3; ++k) {
    while (bin.count < stream_cache::room) bin.push(next++);
    ASSERT_TRUE(s.set_aside(bin));
  }
  beside.drop_oldest(0);
  ASSERT_EQ(beside.count, 3U);
  beside.drop_oldest(2);
  ASSERT_EQ(beside.count, 1U);
  while (bin.count != 0) EXPECT_EQ(bin.pop(), --next);
  ASSERT_TRUE(s.take_from_beside(bin));
  for (claim_index i = 3 * batch; i-- > 2 * batch;) EXPECT_EQ(bin.pop(), i);
  EXPECT_FALSE(s.take_from_beside(bin));

  const std::array<claim_index, 3> from_another{10, 20, 30};
  bin.fill_reversed(from_another);
  ASSERT_EQ(bin.count, 3U);
  for (const claim_index i : from_another) EXPECT_EQ(bin.pop(), i);
}

// Above 64 KiB a size may be in either of two bins; a third size takes the one that holds less.
TEST(stream_cache, sizes_that_share_have_a_choice_of_two) {
  constexpr std::uint32_t a = 1000;
  const auto shares = [](std::uint32_t units) {
    return bin_places::of(units) == bin_places::of(a) || bin_places::of(units) == bin_places::beside(bin_places::of(a));
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

// Whatever is asked for: a hit looks at no size before.
TEST(stream_cache, the_bin_that_serves_is_the_one_that_is_found) {
  stream_cache s{1, 0};
  for (const std::uint32_t units : {1U, 7U, 128U, 129U, 4096U, UINT32_MAX}) {
    EXPECT_EQ(s.find(units), nullptr);
    stream_cache::bin* const before = s.that_serves(units);
    EXPECT_EQ(before != nullptr, units <= bin_places::exact);
    if (before != nullptr) {
      EXPECT_EQ(before->count, 0U) << "nothing to be had";
      EXPECT_EQ(before->most, 0U) << "and takes nothing";
    }
    s.open(s.bin_to_change(units), units, 8);
    EXPECT_EQ(s.that_serves(units), s.find(units));
    EXPECT_NE(s.that_serves(units), nullptr);
  }
  for (const std::uint64_t none :
       {std::uint64_t{UINT32_MAX} + 1, std::uint64_t{UINT32_MAX} + 2, std::uint64_t{1} << 55, UINT64_MAX}) {
    EXPECT_EQ(s.that_serves(none), nullptr) << none;
  }
  const stream_cache::bin* const of_none = s.that_serves(0);
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
