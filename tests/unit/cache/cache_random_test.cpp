// Three threads take turns to allocate and free at random, also blocks of other threads, while shares rise and fall. No
// block is lost or handed out twice, and no bin exceeds its capacity.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>
#include <semaphore>
#include <set>

#include "fake_arena.hpp"

namespace gpumem {
namespace {

/// A thread that does one thing at a time while the caller waits.
class worker {
 public:
  void run(std::function<void()> what) {
    what_ = std::move(what);
    given_.release();
    done_.acquire();
  }

 private:
  void serve(const std::stop_token& ends) {
    while (given_.acquire(), !ends.stop_requested()) {
      what_();
      done_.release();
    }
  }
  std::function<void()> what_;
  std::binary_semaphore given_{0};
  std::binary_semaphore done_{0};
  std::jthread thread_{[this](const std::stop_token& ends) { serve(ends); }};

 public:
  ~worker() {
    thread_.request_stop();
    given_.release();
  }
  worker() = default;
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;
};

class cache_random : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  void allocate() {
    const std::uint64_t bytes = sizes[random() % sizes.size()];
    const cached_stream of = streams[random() % streams.size()];
    address at = a.cache.fast().allocate_by_key(of.key, bytes);
    if (at == 0) at = a.allocate(bytes, of);
    EXPECT_EQ(live.count({at, of.owner}), 0U);
    live.insert({at, of.owner});
  }
  void free_one() {
    if (live.empty()) return;
    const auto which = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
    const auto [at, owner] = *which;
    live.erase(which);
    free(at, owner);
  }
  void free(address at, owner_id owner) {
    if (random() % 8 == 0) {
      const fast_path::deferred how = a.cache.fast().defer_free(at);
      if (how == fast_path::deferred::fence_due) {
        EXPECT_TRUE(a.cache.fast().attach_fence(*a.device.record_context()));
      }
      if (how != fast_path::deferred::refused) return;
    }
    if (!a.cache.fast().free_by_key(at, std::nullopt, {})) static_cast<void>(a.release(at, streams[owner - 1]));
  }
  void step() {
    const std::uint64_t what = random() % 1000;
    if (what < 470) return allocate();
    if (what < 980) return free_one();
    const std::lock_guard held{a.lock};
    if (what < 990) a.cache.pressure();
    if (what >= 990 && what < 998) {
      for (int k = 0; k < 600; ++k) EXPECT_EQ(a.miss(64 * mib), 0U);
    }
    if (what == 998) static_cast<void>(a.cache.reclaim_all());
    if (what == 999) a.cache.reclaim(streams[random() % streams.size()].owner);
    EXPECT_EQ(a.miss(512), 0U);
  }
  // One thread allocates a size, and another frees it.
  void pairs() {
    worker& one = threads[random() % threads.size()];
    worker& other = threads[random() % threads.size()];
    const std::uint64_t bytes = sizes[random() % sizes.size()];
    for (std::uint64_t k = random() % 6; k > 0; --k) {
      address at = 0;
      one.run([&] {
        at = a.cache.fast().allocate_by_key(streams[0].key, bytes);
        if (at == 0) at = a.allocate(bytes, streams[0]);
      });
      other.run([&] { free(at, streams[0].owner); });
    }
  }
  void expect_sound() {
    const block_cache::sums sums = a.sums();
    const std::lock_guard held{a.lock};
    const auto stopped = a.cache.stop();
    std::set<slot_index> slots;
    std::uint64_t bytes = 0;
    a.cache.for_each_held([&](slot_index i, std::uint32_t units, owner_id) {
      EXPECT_TRUE(slots.insert(i).second) << "in two places";
      EXPECT_EQ(a.cache.pointers()[i].read().held_by(), holder::cache);
      bytes += std::uint64_t{units} * block_granularity;
    });
    EXPECT_EQ(slots.size(), sums.held_blocks);
    EXPECT_EQ(bytes, sums.held_bytes);
    EXPECT_EQ(a.cache.pointers().size(), live.size() + slots.size());
    for (const auto& [at, owner] : live) EXPECT_EQ(a.cache.pointers().find(at).word().held_by(), holder::program);
    for (const thread_cache* const each : caches) {
      each->for_each_bin([](const stream_cache&, const stream_cache::bin& bin) { EXPECT_LE(bin.count, bin.capacity); });
    }
  }

  static constexpr std::array<std::uint64_t, 6> sizes{512, 4096, 64 * kib, 300 * kib, mib, 5 * mib};
  static constexpr std::array<cached_stream, 2> streams{{{1, 100}, {2, 200}}};
  fake_arena a;
  std::mt19937_64 random{GetParam()};
  std::set<std::pair<address, owner_id>> live;
  std::vector<const thread_cache*> caches;
  std::array<worker, 3> threads;
};

TEST_P(cache_random, no_block_is_lost_and_no_bin_overfull_whoever_frees) {
  a.serves_again = true;
  a.room = {.bytes = 400 * mib};
  a.calm();
  for (worker& each : threads) {
    each.run([&] {
      const std::lock_guard held{a.lock};
      caches.push_back(a.cache.mine());
    });
  }
  for (int round = 0; round < 400 && !HasFailure(); ++round) {
    for (int k = 0; k < 20; ++k) threads[random() % threads.size()].run([this] { step(); });
    pairs();
    expect_sound();
  }
  while (!live.empty()) threads[0].run([this] { free_one(); });
  {
    const std::lock_guard held{a.lock};
    static_cast<void>(a.cache.reclaim_all());
  }
  EXPECT_EQ(a.out, 0U);
  EXPECT_EQ(a.cache.pointers().size(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, cache_random, ::testing::Range<std::uint64_t>(1, 9));

}  // namespace
}  // namespace gpumem
