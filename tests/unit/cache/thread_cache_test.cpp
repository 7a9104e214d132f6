#include "thread_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>

namespace gpumem {
namespace {

TEST(thread_cache, finds_its_streams_by_handle_key_and_owner) {
  thread_cache c;
  int handle = 0;
  EXPECT_EQ(c.of_handle(&handle), nullptr);
  EXPECT_EQ(c.of_handle(nullptr), nullptr) << "the default stream, before there is a cache for it";
  EXPECT_EQ(c.of_owner(5), nullptr);
  stream_cache& five = c.add({5, 500});
  stream_cache& two = c.add({2, 200});
  EXPECT_EQ(c.of_owner(5), &five);
  EXPECT_EQ(c.of_owner(2), &two);
  EXPECT_EQ(c.of_owner(3), nullptr);
  EXPECT_EQ(c.of_owner(6), nullptr);
  EXPECT_EQ(c.of_key(200), &two);
  EXPECT_EQ(c.of_key(201), nullptr);
  c.remember(&handle, five);
  EXPECT_EQ(c.of_handle(&handle), &five);
  EXPECT_EQ(c.of_handle(nullptr), nullptr);
  EXPECT_EQ(c.of_owner(2), &two);
  c.forget(5);
  EXPECT_EQ(c.of_handle(&handle), nullptr) << "a handle does not outlive what it named";
  EXPECT_EQ(c.of_owner(5), nullptr);
  EXPECT_EQ(c.of_key(500), nullptr);
}

TEST(thread_cache, keeps_the_memory_of_one_stream_for_the_next) {
  thread_cache c;
  c.add({1, 10});
  const std::uint64_t of_one = c.metadata_bytes();
  c.forget(1);
  EXPECT_EQ(c.any_owner(), idle_owner);
  EXPECT_EQ(c.add({2, 20}).stream().key, 20U);
  EXPECT_EQ(c.metadata_bytes(), of_one);
}

// Numbers that collide in the table, and one whose slot is the last.
TEST(thread_cache, finds_every_stream_however_they_come_and_go) {
  thread_cache c;
  std::mt19937 random{1};
  std::map<owner_id, std::uint64_t> known;
  for (int step = 0; step < 20'000; ++step) {
    const auto o = static_cast<owner_id>(random() % 4 * 128 + 100 + random() % 32);
    if (known.contains(o)) {
      c.forget(o);
      known.erase(o);
    } else if (!c.full()) {
      known[o] = std::uint64_t{o} * 4096;
      c.add({o, known[o]});
    }
    for (owner_id each = 100; each < 516; each += 3) {
      const auto found = known.find(each);
      ASSERT_EQ(c.of_owner(each) != nullptr, found != known.end());
      if (found == known.end()) continue;
      ASSERT_EQ(c.of_owner(each)->owner(), each);
      ASSERT_EQ(c.of_key(found->second), c.of_owner(each));
    }
  }
  EXPECT_EQ(c.full(), known.size() == thread_cache::most_streams);
}

TEST(thread_cache, counts_what_it_holds_and_what_it_served) {
  thread_cache c;
  const std::uint64_t empty = c.metadata_bytes();
  stream_cache& s = c.add({1, 0});
  EXPECT_GE(c.metadata_bytes(), empty + sizeof(stream_cache));
  s.open(s.bin_of(1), 1);
  s.open(s.bin_of(700), 700);
  for (slot_index i = 0; i < 5; ++i) s.find(1)->push(i);
  for (slot_index i = 5; i < 7; ++i) s.find(700)->push(i);
  c.figures.filled = 7;
  EXPECT_EQ(c.blocks(), 7U);
  EXPECT_EQ(c.allocations(), 0U);
  static_cast<void>(s.find(700)->pop());
  EXPECT_EQ(c.blocks(), 6U);
  EXPECT_EQ(c.allocations(), 1U);
}

// Another thread stops the cache: after the request, the fence and the wait, its owner stays out until the stop ends.
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
    c.request_stop();
    heavy_fence();
    while (c.inside()) std::this_thread::yield();
    ++guarded;
    c.end_stop();
  }
  stop = true;
  owner.join();
  EXPECT_EQ(guarded, own + rounds);
}

TEST(thread_cache, refuses_its_thread_while_it_is_stopped) {
  thread_cache c;
  ASSERT_TRUE(c.enter());
  EXPECT_TRUE(c.inside());
  c.leave();
  c.request_stop();
  EXPECT_FALSE(c.enter());
  EXPECT_FALSE(c.inside()) << "a refused thread is out again";
  c.end_stop();
  EXPECT_TRUE(c.enter());
  c.leave();
}

}  // namespace
}  // namespace gpumem
