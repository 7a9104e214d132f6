#include "stream_cache.hpp"

#include <gtest/gtest.h>

#include <set>

namespace gpumem {
namespace {

TEST(bin_places, small_sizes_have_one_each_and_all_are_in_range) {
  std::set<std::uint32_t> exact;
  for (std::uint32_t units = 1; units <= bin_index::exact; ++units) {
    EXPECT_TRUE(exact.insert(bin_index::index_of(units)).second) << units;
  }
  std::set<std::uint32_t> shared;
  for (std::uint32_t units = bin_index::exact + 1; units < 100'000; ++units) {
    const std::uint32_t place = bin_index::index_of(units);
    ASSERT_GE(place, bin_index::exact);
    ASSERT_LT(place, bin_index::all);
    shared.insert(place);
  }
  EXPECT_EQ(shared.size(), bin_index::shared) << "all of them are used";
  EXPECT_LT(bin_index::index_of(UINT32_MAX), bin_index::all);
}

TEST(stream_cache, a_bin_is_of_one_size_and_last_in_first_out) {
  stream_cache s{{3, 77}};
  EXPECT_EQ(s.owner(), 3U);
  EXPECT_EQ(s.stream().key, 77U);
  EXPECT_EQ(s.find(4), nullptr) << "of no size yet";
  stream_cache::bin& bin = s.bin_of(4);
  s.open(bin, 4, 8);
  ASSERT_EQ(s.find(4), &bin);
  EXPECT_EQ(s.find(5), nullptr);
  EXPECT_EQ(bin.count, 0U);
  EXPECT_EQ(bin.capacity, 8U);
  for (slot_index i = 10; i < 18; ++i) bin.push(i);
  EXPECT_EQ(bin.count, 8U);
  EXPECT_EQ(bin.held[0], 10U);
  bin.drop_oldest(3);
  EXPECT_EQ(bin.count, 5U);
  for (slot_index i = 18; i-- > 13;) EXPECT_EQ(bin.pop(), i);
  EXPECT_EQ(bin.count, 0U);
}

TEST(stream_cache, takes_a_batch_in_the_order_of_its_frees) {
  stream_cache s{{1, 0}};
  stream_cache::bin& bin = s.bin_of(8);
  s.open(bin, 8);
  const std::array<slot_index, 3> from_another{10, 20, 30};
  bin.fill_reversed(from_another);
  ASSERT_EQ(bin.count, 3U);
  for (const slot_index i : from_another) EXPECT_EQ(bin.pop(), i);
}

// Above 64 KiB, the latest size gets the bin.
TEST(stream_cache, sizes_that_share_a_bin_take_turns) {
  constexpr std::uint32_t a = 1000;
  std::uint32_t b = a + 1;
  while (bin_index::index_of(b) != bin_index::index_of(a)) ++b;
  stream_cache s{{1, 0}};
  stream_cache::bin& bin = s.bin_of(a);
  ASSERT_EQ(&s.bin_of(b), &bin);
  s.open(bin, a);
  EXPECT_EQ(s.find(a), &bin);
  EXPECT_EQ(s.find(b), nullptr);
  s.open(bin, b);
  EXPECT_EQ(s.find(a), nullptr);
  EXPECT_EQ(s.find(b), &bin);
}

// For any size, because an allocation does not check the size first.
TEST(stream_cache, finds_no_bin_for_what_none_is_of) {
  stream_cache s{{1, 0}};
  for (const std::uint32_t units : {1U, 7U, 128U, 129U, 4096U, UINT32_MAX}) {
    EXPECT_EQ(s.find(units), nullptr);
    s.open(s.bin_of(units), units);
    ASSERT_NE(s.find(units), nullptr);
    EXPECT_EQ(s.find(units)->units, units);
  }
  for (const std::uint64_t none :
       {std::uint64_t{UINT32_MAX} + 1, std::uint64_t{UINT32_MAX} + 2, std::uint64_t{1} << 55, UINT64_MAX}) {
    EXPECT_EQ(s.find(none), nullptr) << none;
  }
  const stream_cache::bin* const of_none = s.find(0);
  EXPECT_TRUE(of_none == nullptr || of_none->capacity == 0) << "takes nothing";
}

TEST(stream_cache, lists_the_bins_in_use) {
  stream_cache s{{1, 0}};
  const auto in_use = [&s] {
    std::set<std::uint32_t> units;
    s.for_each_in_use([&units](const stream_cache::bin& b) { EXPECT_TRUE(units.insert(b.units).second); });
    return units;
  };
  EXPECT_TRUE(in_use().empty());
  const std::set<std::uint32_t> sizes{1, 64, 65, 128, 129, 100'000};
  for (const std::uint32_t units : sizes) s.open(s.bin_of(units), units);
  EXPECT_EQ(in_use(), sizes);
  s.close(s.bin_of(65));
  EXPECT_EQ(s.find(65)->capacity, 0U) << "takes nothing in until it is opened again";
  EXPECT_EQ(in_use().size(), sizes.size() - 1);
  s.for_each_in_use([&s](stream_cache::bin& b) { s.close(b); });
  EXPECT_TRUE(in_use().empty());
}

}  // namespace
}  // namespace gpumem
