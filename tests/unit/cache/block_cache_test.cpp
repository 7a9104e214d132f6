#include "block_cache.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <set>

#include "fake_arena.hpp"

namespace gpumem {
namespace {

TEST(block_cache, is_nothing_where_it_is_off) {
  fake_arena a{{.enabled = false, .without_lock = true, .place = {.allocator = 2'000'002, .device = 0}}};
  a.calm();
  const address at = a.allocate(1024);
  EXPECT_FALSE(a.release(at));
  EXPECT_EQ(a.came_back, 1U);
  EXPECT_EQ(a.cache.mine(), nullptr);
}

TEST(block_cache, keeps_nothing_while_the_program_grows) {
  fake_arena a;
  EXPECT_FALSE(a.release(a.allocate(mib)));
  EXPECT_FALSE(a.release(a.allocate(1024)));
  a.calm();
  EXPECT_TRUE(a.release(a.allocate(1024)));
  EXPECT_TRUE(a.release(a.allocate(2 * mib)));
  {
    const std::lock_guard held{a.lock};
    a.cache.pressure();
  }
  EXPECT_FALSE(a.release(a.allocate(4 * mib)));
  EXPECT_FALSE(a.release(a.allocate(4 * mib)));
}

TEST(block_cache, keeps_more_than_its_share_only_of_a_pair_that_repeats) {
  fake_arena a;
  a.room = {.bytes = 64 * mib};
  a.calm();
  const auto pair_of = [&a](address at) {
    const address again = at != 0 ? a.again(at) : a.allocate(40 * mib);
    return std::pair{again, a.release(again)};
  };
  const auto [at, first_kept] = pair_of(0);
  EXPECT_FALSE(first_kept);
  EXPECT_TRUE(pair_of(at).second) << "the second in a row";
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 40 * mib), at);
  EXPECT_TRUE(a.cache.fast().free_by_key(at, 100, {}));
  const address other = a.allocate(8 * mib);
  EXPECT_EQ(a.sums().held_bytes, 0U) << "it goes back before the arena serves anybody";
  EXPECT_FALSE(a.release(other));
}

// Another thread allocates the blocks that this one frees, so the pair finds a full bin. The cache's share has fallen
// since the bin was filled.
TEST(block_cache, a_pair_that_repeats_is_alone_in_a_bin_that_was_full) {
  fake_arena a;
  a.calm();
  constexpr unsigned full = stream_cache::max_capacity;
  static_cast<void>(fill(a, mib, full));
  ASSERT_EQ(a.sums().held_blocks, full);
  {
    const std::lock_guard held{a.lock};
    a.cache.pressure();
  }
  address at = 0;
  std::thread{[&] { at = a.allocate(mib); }}.join();
  EXPECT_FALSE(a.release(at)) << "the first pair";
  std::thread{[&] { a.again(at); }}.join();
  EXPECT_TRUE(a.release(at)) << "the second in a row";
  EXPECT_EQ(a.sums().held_blocks, 1U);
  EXPECT_EQ(a.came_back, full + 1) << "what the bin held, and the block of the first pair";
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, mib), at);
}

TEST(block_cache, keeps_nothing_large_of_a_paged_arena) {
  fake_arena a;
  a.room.paged = true;
  a.calm();
  EXPECT_TRUE(a.release(a.allocate(4 * kib)));
  EXPECT_FALSE(a.release(a.allocate(64 * kib)));
}

TEST(block_cache, makes_room_within_its_share_by_giving_others_back) {
  fake_arena a;
  a.calm();
  for (std::uint64_t bytes = 20 * mib; bytes <= 60 * mib; bytes += mib) EXPECT_TRUE(a.release(a.allocate(bytes)));
  EXPECT_GT(a.sums().held_bytes, 60 * mib);
  EXPECT_LT(a.sums().held_bytes, 512 * mib) << "of 1,640 MiB; half of what is free, and less the fuller it is";
}

TEST(block_cache, full_bins_go_to_the_depot_and_serve_another_thread) {
  fake_arena a;
  a.calm();
  const std::vector<address> all = fill(a, 1024, 200);
  EXPECT_EQ(a.sums().held_blocks, 200U) << "a bin has room for 62: the rest is in the depot";
  std::set<address> got;
  std::thread{[&] {
    for (int k = 0; k < 60; ++k) {
      address at = a.cache.fast().allocate_by_key(100, 1024);
      if (at == 0) at = a.allocate(1024);
      got.insert(at);
    }
    for (const address at : got) EXPECT_EQ(std::count(all.begin(), all.end(), at), 1) << "from the depot";
    EXPECT_EQ(got.size(), 60U);
  }}.join();
  EXPECT_EQ(a.blocks.size(), 201U) << "one was for the calm";
  const std::uint64_t lives = 60U * 1024U;
  EXPECT_EQ(a.out - a.sums().held_bytes, lives);
}

TEST(block_cache, a_depot_that_is_full_gives_half_a_bin_back) {
  fake_arena a;
  a.room = {.bytes = 4 * mib};
  a.calm();
  static_cast<void>(fill(a, 4096, 900));
  EXPECT_GT(a.came_back, 0U);
  EXPECT_LT(a.sums().held_blocks, 900U);
  EXPECT_EQ(a.sums().held_blocks + a.came_back, 900U);
}

TEST(block_cache, everything_goes_back_when_memory_is_short) {
  fake_arena a;
  a.calm();
  static_cast<void>(fill(a, 1024, 100));
  static_cast<void>(fill(a, 2048, 5, second));
  std::barrier step{2};
  std::thread other{[&] {
    static_cast<void>(fill(a, 512, 7));
    step.arrive_and_wait();
    step.arrive_and_wait();
    EXPECT_EQ(a.cache.fast().allocate_by_key(100, 512), 0U);
  }};
  step.arrive_and_wait();
  EXPECT_EQ(a.sums().held_blocks, 112U);
  {
    const std::lock_guard held{a.lock};
    EXPECT_TRUE(a.cache.reclaim_all());
    EXPECT_FALSE(a.cache.reclaim_all()) << "there is nothing left";
  }
  EXPECT_EQ(a.came_back, 112U);
  EXPECT_EQ(a.out, 0U);
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024), 0U);
  step.arrive_and_wait();
  other.join();
}

TEST(block_cache, one_stream_or_all_are_forgotten) {
  fake_arena a;
  a.calm();
  static_cast<void>(fill(a, 1024, 100));
  static_cast<void>(fill(a, 2048, 5, second));
  {
    const std::lock_guard held{a.lock};
    a.cache.reclaim(first.owner);
  }
  EXPECT_EQ(a.came_back, 100U);
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024), 0U);
  EXPECT_NE(a.cache.fast().allocate_by_key(200, 2048), 0U);
  {
    const std::lock_guard held{a.lock};
    a.cache.reclaim(idle_owner);
  }
  EXPECT_EQ(a.came_back, 104U);
  EXPECT_EQ(a.cache.fast().allocate_by_key(200, 2048), 0U);
  EXPECT_EQ(a.sums().held_blocks, 0U);
}

TEST(block_cache, a_thread_that_ends_gives_back_what_it_has_and_leaves_its_counts) {
  fake_arena a;
  a.calm();
  std::thread{[&] {
    const address at = fill(a, 1024, 3).back();
    EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1000), at);
    EXPECT_EQ(a.sums().requested_bytes, 1000U);
  }}.join();
  EXPECT_EQ(a.came_back, 2U);
  EXPECT_EQ(a.ended_allocations, 1U);
  EXPECT_EQ(a.ended_frees, 0U);
  EXPECT_EQ(a.ended_requested_bytes, 1000U);
  EXPECT_EQ(a.sums().held_blocks, 0U);
}

TEST(block_cache, counts_what_is_live_and_the_most_that_was) {
  fake_arena a;
  a.calm();  // 64 MiB were live at once
  static_cast<void>(fill(a, 1024, 10));
  const address more = a.allocate(64 * mib - 4096);
  for (int k = 0; k < 6; ++k) EXPECT_NE(a.cache.fast().allocate_by_key(100, 1024), 0U);
  EXPECT_EQ(a.sums().held_bytes, 4U * 1024U);
  EXPECT_EQ(a.sums().peak_live_bytes, 64 * mib + 2048) << "with what the cache handed out since it was looked at";
  {
    const std::lock_guard held{a.lock};
    EXPECT_EQ(a.cache.peak_live_bytes(), 64 * mib);
    static_cast<void>(a.cache.mine());
    EXPECT_EQ(a.cache.live_bytes(), 64 * mib + 2048);
    EXPECT_EQ(a.cache.peak_live_bytes(), 64 * mib + 2048);
  }
  EXPECT_GT(a.sums().metadata_bytes, sizeof(thread_cache));
  static_cast<void>(a.release(more));
  std::uint64_t held = 0;
  {
    const std::lock_guard under{a.lock};
    const auto stopped = a.cache.stop();
    a.cache.for_each_held([&](slot_index i, std::uint32_t units, owner_id o) {
      EXPECT_EQ(a.cache.pointers()[i].read().units(), units);
      EXPECT_EQ(o, first.owner);
      ++held;
    });
  }
  EXPECT_EQ(held, a.sums().held_blocks);
}

TEST(block_cache, replaces_one_stream_at_a_time_where_a_thread_has_too_many) {
  fake_arena a;
  a.calm();
  constexpr unsigned most = thread_cache::most_streams;
  for (owner_id o = 1; o <= most; ++o) static_cast<void>(fill(a, 512, 2, {o, 1000U + o}));
  EXPECT_EQ(a.sums().held_blocks, 2U * most);
  const std::uint64_t metadata = a.sums().metadata_bytes;
  for (unsigned k = 1; k < most; ++k)
    EXPECT_FALSE(a.release(a.allocate(512, {most + k, 2000U + k}), {most + k, 2000U + k}));
  EXPECT_EQ(a.came_back, most - 1) << "a stream that comes once is the arena's to serve";
  const cached_stream again{most + 1, 2001};
  EXPECT_TRUE(a.release(a.allocate(512, again), again));
  EXPECT_EQ(a.came_back, most - 1 + 2U) << "with the blocks of the stream that it replaces";
  EXPECT_EQ(a.references[most + 1], 1);
  EXPECT_EQ(std::ranges::count(a.references, 1, &std::pair<const owner_id, int>::second), most);
  EXPECT_EQ(a.sums().metadata_bytes, metadata);
}

TEST(block_cache, refers_to_the_owners_of_its_streams_until_it_forgets_them) {
  fake_arena a;
  a.calm();
  static_cast<void>(fill(a, 512, 2));
  static_cast<void>(fill(a, 512, 2, second));
  EXPECT_EQ(a.references[first.owner], 1);
  {
    const std::lock_guard held{a.lock};
    a.cache.reclaim(first.owner);
  }
  EXPECT_EQ(a.references[first.owner], 0);
  EXPECT_EQ(a.references[second.owner], 1);
  std::thread{[&] { static_cast<void>(fill(a, 512, 2)); }}.join();
  EXPECT_EQ(a.references[first.owner], 0) << "the thread has ended";
  const std::lock_guard held{a.lock};
  a.cache.reclaim(idle_owner);
  EXPECT_EQ(a.references[second.owner], 0);
}

TEST(block_cache, the_table_doubles_with_every_cache_emptied) {
  fake_arena a;
  a.calm();
  static_cast<void>(fill(a, 512, 20));
  EXPECT_EQ(a.sums().held_blocks, 20U);
  std::vector<address> live;
  for (int k = 0; k < 5000; ++k) live.push_back(a.allocate(1024));
  EXPECT_EQ(a.sums().held_blocks, 0U) << "4,096 have room at first";
  for (const address at : live) EXPECT_NE(a.cache.pointers().find(at).slot, nullptr);
}

// Under ThreadSanitizer: hits of several threads while one empties all caches again and again.
TEST(block_cache, hits_and_flushes_at_the_same_time_lose_no_block) {
  fake_arena a;
  a.calm();
  std::atomic<int> done{0};
  std::vector<std::thread> all;
  for (int t = 0; t < 3; ++t) {
    all.emplace_back([&] {
      for (int k = 0; k < 3000; ++k) {
        address at = a.cache.fast().allocate_by_key(100, 1024);
        if (at == 0) at = a.allocate(1024);
        if (!a.cache.fast().free_by_key(at, std::nullopt, {})) static_cast<void>(a.release(at));
      }
      ++done;
    });
  }
  while (done < 3) {
    const std::lock_guard held{a.lock};
    static_cast<void>(a.cache.reclaim_all());
  }
  for (std::thread& t : all) t.join();
  const std::lock_guard held{a.lock};
  static_cast<void>(a.cache.reclaim_all());
  EXPECT_EQ(a.out, 0U);
  EXPECT_EQ(a.cache.pointers().size(), 0U);
}

}  // namespace
}  // namespace gpumem
