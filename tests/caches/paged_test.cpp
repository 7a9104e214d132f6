/// Caches over a pool of pages: cached blocks do not change the places of other blocks.
#include <algorithm>
#include <array>
#include <random>

#include "cached.hpp"
#include "forwarding_device.hpp"

namespace gpumem::caches {
namespace {

class CachedPages : public cached_program {
 protected:
  /// The number of times that a hundred pairs took the lock, without those of reading the statistics.
  std::uint64_t locks_of_pairs(std::size_t bytes) {
    // Repeats until the previous size has left the cache, and until the pool is calm again if it had to empty the
    // caches for this size.
    for (int turn = 0; turn < 200; ++turn) give(take(bytes));
    const std::uint64_t first = stats().locks;
    const std::uint64_t second = stats().locks;
    for (int turn = 0; turn < 100; ++turn) give(take(bytes));
    return stats().locks - second - (second - first);
  }
  /// The offsets of all blocks of a program that allocates and frees at random, some blocks many times in turn. Each
  /// block has a unique size, so that the cache holds the same block that the heap would hold.
  std::vector<std::uint64_t> places(unsigned seed) {
    std::array<std::size_t, 12> sizes{67, 83, 181, 401, 599, 2053, 4111, 6151, 6163, 18433, 34819, 40961};
    for (std::size_t& bytes : sizes) bytes *= 512;
    std::mt19937 random{seed};
    std::array<void*, 12> live{};
    std::vector<std::uint64_t> at;
    for (int turn = 0; turn < 200; ++turn) give(take(160 * mib));  // calm at a peak that is not reached again
    for (int turn = 0; turn < 3000; ++turn) {
      const std::size_t which = random() % sizes.size();
      for (std::size_t changes = 1 + random() % 6; changes != 0; --changes) {
        if (live[which] != nullptr) {
          give(live[which]);
          live[which] = nullptr;
        } else {
          live[which] = take(sizes[which]);
          at.push_back(reinterpret_cast<std::uintptr_t>(live[which]));
        }
      }
    }
    for (void* const p : live) {
      if (p != nullptr) give(p);
    }
    const std::uint64_t lowest = *std::min_element(at.begin(), at.end());
    for (std::uint64_t& place : at) place -= lowest;
    return at;
  }
};

TEST_F(CachedPages, APairOfAnySizeTakesNoLockOnGrowth) {
  open("growth");
  for (const std::size_t bytes : {512UL, 40'000UL, 300'000UL, 2UL << 20, 8UL << 20, 30UL << 20}) {
    EXPECT_EQ(locks_of_pairs(bytes), 0U) << bytes;
  }
}

TEST_F(CachedPages, APairOfAnySizeThatRepeatsTakesNoLock) {
  open("expandable");
  for (const std::size_t bytes : {512UL, 32'768UL, 40'000UL, 300'000UL, 2UL << 20, 8UL << 20, 30UL << 20}) {
    EXPECT_EQ(locks_of_pairs(bytes), 0U) << bytes;
  }
}

// Above 32 KiB a cached block would keep a page in use, so it goes back when another request takes the lock.
TEST_F(CachedPages, CachedBlocksOfAPairGoBackBeforeAnotherRequestIsServed) {
  open("expandable");
  static_cast<void>(locks_of_pairs(8 * mib));
  EXPECT_EQ(stats().thread_cached_bytes, 8 * mib);
  void* const other = take(6 * mib);
  EXPECT_EQ(stats().thread_cached_bytes, 0U);
  void* const again = take(8 * mib);
  give(again);
  EXPECT_EQ(stats().thread_cached_bytes, 0U) << "its bin is still open";
  give(other);
  EXPECT_EQ(stats().thread_cached_bytes, 0U);
}

TEST_F(CachedPages, CachedBlocksOfAPairOnAnotherThreadGoBack) {
  open("expandable");
  std::barrier<> turn{2};
  std::thread other{[&] {
    static_cast<void>(locks_of_pairs(8 * mib));
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    for (int pairs = 0; pairs < 1000; ++pairs) give(take(8 * mib));  // while the first thread takes what they keep
  }};
  turn.arrive_and_wait();
  EXPECT_EQ(stats().thread_cached_bytes, 8 * mib);
  void* const block = take(6 * mib);
  EXPECT_EQ(stats().thread_cached_bytes, 0U);
  turn.arrive_and_wait();
  for (int pairs = 0; pairs < 1000; ++pairs) give(take(5 * mib));
  other.join();
  give(block);
}

TEST_F(CachedPages, BlocksLieWhereTheyWouldWithoutCaches) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    open("expandable", true);
    const std::vector<std::uint64_t> kept = places(seed);
    open("expandable", false);
    EXPECT_EQ(kept, places(seed)) << seed;
  }
}

// Between the device's calls and the lock, another thread takes part of the stream's free memory. The following search
// gives the new memory to the stream, and finds no block that is long enough.
TEST(Pages, APlaceOfWhichPartWasTakenIsSoughtAnew) {
  sim_device device{{.capacity_bytes = gib}};
  forwarding_device hooked{device};
  std::array<gpumem::device*, 1> devices{&hooked};
  settings s;
  ASSERT_TRUE(s.set("policy", "expandable").ok());
  ASSERT_TRUE(s.set("slack", "50%").ok());
  ASSERT_TRUE(s.set("thread_cache", "0").ok());
  ASSERT_TRUE(s.set("stream_ids", "notify").ok());
  const auto opened = allocator::open(devices, s);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  allocator& tested = **opened;
  const stream_ref own = device.create_stream();
  const stream_ref other = device.create_stream();
  const auto take = [&](std::uint64_t bytes, stream_ref of) {
    const result<void*> got = tested.try_allocate({.bytes = bytes, .stream = of});
    EXPECT_TRUE(got.ok()) << got.why().message();
    return got.ok() ? *got : nullptr;
  };
  void* const small = take(512, other);
  void* const first = take(32 * mib, own);
  device.enqueue_use(own, 1'000'000'000, reinterpret_cast<std::uintptr_t>(first), 32 * mib);
  EXPECT_TRUE(tested.try_deallocate(first).ok());  // free for that stream, and for no other yet

  void* part = nullptr;
  hooked.before_map = [&] {
    hooked.before_map = nullptr;
    part = take(16 * mib, own);
  };
  void* const large = take(64 * mib, own);
  EXPECT_EQ(part, first) << "this is no test where the two do not meet";
  for (void* const p : {small, part, large}) EXPECT_TRUE(tested.try_deallocate(p).ok());
  EXPECT_TRUE(tested.check(0).ok()) << tested.check(0).message();
}

}  // namespace
}  // namespace gpumem::caches
