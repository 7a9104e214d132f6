#include "thread_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>

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

TEST(thread_cache, finds_its_streams_by_handle_key_and_owner) {
  thread_cache c;
  int handle = 0;
  EXPECT_EQ(c.of_handle(&handle), nullptr);
  EXPECT_EQ(c.of_handle(nullptr), nullptr) << "the default stream, before there is a cache for it";
  EXPECT_FALSE(c.serves_latest(nullptr));
  EXPECT_EQ(c.latest_tag(), claim_word::no_tag);
  EXPECT_EQ(c.of_owner(5), nullptr);
  stream_cache& five = c.add(5, 500);
  stream_cache& two = c.add(2, 200);
  EXPECT_EQ(c.owners(), 6U);
  EXPECT_EQ(c.of_owner(5), &five);
  EXPECT_EQ(c.of_owner(2), &two);
  EXPECT_EQ(c.of_owner(3), nullptr);
  EXPECT_EQ(c.of_owner(6), nullptr);
  EXPECT_EQ(c.of_key(200), &two);
  EXPECT_EQ(c.of_key(201), nullptr);
  c.remember(&handle, five);
  EXPECT_EQ(c.of_handle(&handle), &five);
  EXPECT_TRUE(c.serves_latest(&handle));
  EXPECT_EQ(&c.latest(), &five);
  EXPECT_EQ(c.latest_tag(), claim_word::plain_tag_of(5));
  EXPECT_EQ(c.of_handle(nullptr), nullptr);
  EXPECT_EQ(c.of_owner(2), &two);
  const std::unique_ptr<stream_cache> forgotten = c.forget(5);
  EXPECT_EQ(forgotten.get(), &five);
  EXPECT_EQ(c.of_handle(&handle), nullptr) << "a handle does not outlive what it named";
  EXPECT_EQ(c.latest_tag(), claim_word::no_tag);
  EXPECT_EQ(c.of_owner(5), nullptr);
  EXPECT_EQ(c.of_key(500), nullptr);
}

// As the pool hands what one thread, or one stream, leaves to the next.
TEST(thread_cache, a_streams_cache_serves_another_one_once_it_is_empty) {
  thread_cache c;
  stream_cache& first = c.add(5, 500);
  for (const std::uint32_t units : {3U, 700U}) {
    stream_cache::bin& bin = first.bin_to_change(units);
    first.open(bin, units, 8);
    bin.push(17);
    static_cast<void>(bin.pop());
    first.close(bin);
  }
  stream_cache& second = c.add(2, 200, c.forget(5));
  EXPECT_EQ(&second, &first);
  EXPECT_EQ(second.owner(), 2U);
  EXPECT_EQ(second.key(), 200U);
  EXPECT_EQ(c.of_owner(2), &second);
  EXPECT_EQ(c.of_owner(5), nullptr);
  EXPECT_EQ(second.next_in_use(0), stream_cache::no_bin);
  for (const std::uint32_t units : {3U, 700U}) {
    const stream_cache::bin* const bin = second.that_serves(units);
    ASSERT_NE(bin, nullptr);
    EXPECT_EQ(bin->count, 0U);
    EXPECT_EQ(bin->most, 0U) << "takes nothing in until it is opened";
  }
}

TEST(thread_cache, counts_what_it_holds_and_what_it_served) {
  thread_cache c;
  const std::uint64_t empty = c.metadata_bytes();
  stream_cache& s = c.add(1, 0);
  EXPECT_GE(c.metadata_bytes(), empty + sizeof(stream_cache));
  s.open(s.bin_to_change(1), 1, 8);
  s.open(s.bin_to_change(700), 700, 8);
  for (claim_index i = 0; i < 5; ++i) s.find(1)->push(i);
  for (claim_index i = 5; i < 7; ++i) s.find(700)->push(i);
  c.figures.filled = 7;
  EXPECT_EQ(c.blocks(), 7U);
  EXPECT_EQ(c.allocations(), 0U);
  static_cast<void>(s.find(700)->pop());
  EXPECT_EQ(c.blocks(), 6U);
  EXPECT_EQ(c.allocations(), 1U);
}

// The claim of another thread: after the announcement, the fence and the wait, the owner is out until the claim ends.
TEST(thread_cache, is_touched_by_one_at_a_time) {
  thread_cache c;
  std::uint64_t guarded = 0;
  std::uint64_t own = 0;
  std::atomic<bool> stop{false};
  std::thread owner{[&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (!c.enter()) continue;
      ++guarded;
      ++own;
      c.leave();
    }
  }};
  constexpr std::uint64_t rounds = 2000;
  for (std::uint64_t r = 0; r < rounds; ++r) {
    c.announce_claim();
    heavy_fence();
    while (c.inside()) std::this_thread::yield();
    ++guarded;
    c.end_claim();
  }
  stop = true;
  owner.join();
  EXPECT_EQ(guarded, own + rounds);
}

TEST(thread_cache, refuses_its_thread_while_it_is_claimed) {
  thread_cache c;
  ASSERT_TRUE(c.enter());
  EXPECT_TRUE(c.inside());
  c.leave();
  c.announce_claim();
  EXPECT_FALSE(c.enter());
  EXPECT_FALSE(c.inside()) << "a refused thread is out again";
  c.end_claim();
  EXPECT_TRUE(c.enter());
  c.leave();
}

}  // namespace
}  // namespace gpumem
