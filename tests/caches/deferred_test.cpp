/// Frees that no bin takes: they wait for their thread's next request or for whoever needs them, and nothing lies
/// elsewhere for it.
#include <algorithm>
#include <array>
#include <random>

#include "asymmetric_fence.hpp"
#include "cached.hpp"

namespace gpumem::caches {
namespace {

class DeferredFrees : public cached_program {
 protected:
  static constexpr std::size_t waiting_at_most = 16;  // stream_cache::deferred_frees::most

  /// A size that no request had before, and that no cache therefore keeps.
  [[nodiscard]] std::size_t new_size() noexcept { return 512 * ++units_; }
  [[nodiscard]] std::vector<void*> take_new(std::size_t blocks, stream_ref s = {}) {
    std::vector<void*> taken;
    for (std::size_t k = 0; k < blocks; ++k) taken.push_back(take(new_size(), s));
    return taken;
  }
  /// Locks taken, but for those of asking.
  std::uint64_t locks_of(const std::function<void()>& does) const {
    const std::uint64_t first = stats().locks;
    const std::uint64_t second = stats().locks;
    does();
    return stats().locks - second - (second - first);
  }
  /// Of freeing two blocks of some MiB: none where the thread is alone, else one, since only one of them may wait.
  std::uint64_t locks_of_two_frees() {
    void* const a = take(mib_bytes_ += 512);  // a size that comes back is kept, and does not wait
    void* const b = take(mib_bytes_ += 512);
    return locks_of([&] {
      give(a);
      give(b);
    });
  }
  /// Where each block lies, from the lowest on, when a program takes and frees at random what never comes back.
  std::vector<std::uint64_t> places(unsigned seed) {
    units_ = 600;
    fill_cache();
    static_cast<void>(allocator_->trim(0));  // empties the cache
    std::mt19937 random{seed};
    std::vector<void*> live;
    std::vector<std::uint64_t> at;
    for (int turn = 0; turn < 3000; ++turn) {
      if (live.empty() || (live.size() < 60 && random() % 2 == 0)) {
        live.push_back(take(new_size()));
        at.push_back(reinterpret_cast<std::uintptr_t>(live.back()));
      } else {
        std::swap(live[random() % live.size()], live.back());
        give(live.back());
        live.pop_back();
      }
    }
    for (void* const p : live) give(p);
    const std::uint64_t lowest = *std::min_element(at.begin(), at.end());
    for (std::uint64_t& place : at) place -= lowest;
    return at;
  }

 private:
  std::size_t units_ = 100;
  std::size_t mib_bytes_ = 3 * mib;
};

TEST_F(DeferredFrees, TakeOneLockForMany) {
  fill_cache();
  std::vector<void*> some = take_new(waiting_at_most);
  EXPECT_EQ(locks_of([&] {
              for (void* const p : some) give(p);
            }),
            0U);
  std::vector<void*> more = take_new(waiting_at_most + 4);
  EXPECT_EQ(locks_of([&] {
              for (void* const p : more) give(p);
            }),
            1U)
      << "the seventeenth settles those that wait";
  some = take_new(4);
  void* last = nullptr;
  EXPECT_EQ(locks_of([&] {
              for (void* const p : some) give(p);
              last = take(new_size());
            }),
            1U)
      << "that of the request";
  give(last);
}

TEST_F(DeferredFrees, BlocksLieWhereTheyWouldWithoutCaches) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    open("grab_all", true);
    std::vector<std::uint64_t> with;
    const std::uint64_t locks = locks_of([&] { with = places(seed); });
    open("grab_all", false);
    std::vector<std::uint64_t> without;
    const std::uint64_t locks_without = locks_of([&] { without = places(seed); });
    EXPECT_EQ(with, without) << "seed " << seed;
    EXPECT_LT(static_cast<double>(locks), 0.7 * static_cast<double>(locks_without));
  }
}

TEST_F(DeferredFrees, ServeAnotherThreadBeforeCachesAreEmptied) {
  const parked_thread other{[this] {
    fill_cache();
    void* const a = take(100 * mib);
    void* const b = take(100 * mib);
    give(a);
    give(b);
  }};
  void* const p = take(180 * mib);
  EXPECT_NE(p, nullptr) << "two thirds of all there is waited for the heap";
  EXPECT_GT(in_caches(), 0U) << "what caches keep was no hindrance";
  EXPECT_EQ(stats().reserved_bytes, 256 * mib);
  if (p != nullptr) give(p);
}

// They are no other thread's to be placed in, so there are not to be many bytes of them while there is one.
TEST_F(DeferredFrees, OfManyBytesWaitOneAtATime) {
  const parked_thread other{[this] { give(take(512)); }};
  fill_cache();
  void* const a = take(3 * mib);
  void* const b = take(5 * mib);
  EXPECT_EQ(locks_of([&] {
              give(a);
              give(b);
            }),
            1U);
  void* const c = take(200 * mib);
  EXPECT_EQ(locks_of([&] { give(c); }), 0U) << "one of any size";
}

// Another one ends that for as long as it is there; one that only looks is none.
TEST_F(DeferredFrees, OfManyBytesWaitWhileTheFirstThreadIsAloneAgain) {
  if (!asymmetric_fences()) GTEST_SKIP() << "no membarrier here (or ThreadSanitizer), so no thread is ever alone";
  fill_cache();
  for (int round = 0; round < 3; ++round) {
    {
      const parked_thread other{[this] { give(take(512)); }};
      EXPECT_EQ(locks_of_two_frees(), 1U) << round;
      std::thread{[this] { give(take(512)); }}.join();
      EXPECT_EQ(locks_of_two_frees(), 1U) << round << ": one of the two others is still there";
    }
    EXPECT_EQ(locks_of_two_frees(), 0U) << round;
    std::thread{[this] { static_cast<void>(stats()); }}.join();
    EXPECT_EQ(locks_of_two_frees(), 0U) << round;
  }
}

TEST_F(DeferredFrees, OfManyBytesWaitOnceTheFirstThreadHasLeftOneAlone) {
  if (!asymmetric_fences()) GTEST_SKIP() << "no membarrier here (or ThreadSanitizer), so no thread is ever alone";
  parked_thread first{[this] { give(take(512)); }};
  parked_thread second{[this] { give(take(512)); }};
  fill_cache();
  EXPECT_EQ(locks_of_two_frees(), 1U);
  first.end();
  EXPECT_EQ(locks_of_two_frees(), 1U) << "the second one is still there";
  second.end();
  EXPECT_EQ(locks_of_two_frees(), 0U);
}

// While nobody else is there any number of bytes may wait; a second thread's first request finds them in their places.
TEST_F(DeferredFrees, AreSettledWhenASecondThreadComes) {
  if (!asymmetric_fences()) GTEST_SKIP() << "no membarrier here (or ThreadSanitizer), so no thread is ever alone";
  calm_ = false;
  open("grab_all");
  for (int turn = 0; turn < 1200; ++turn) give(take(32 * mib - static_cast<std::size_t>(turn % 2) * 512));
  fill_cache();
  static_cast<void>(allocator_->trim(0));
  void* const first = take(40 * mib);
  void* const rest = take(60 * mib);
  give(first);
  std::thread{[&] {
    void* const p = take(39 * mib);
    EXPECT_EQ(p, first) << "the tightest hole";
    give(p);
  }}.join();
  give(rest);
}

// A bin holds nothing for a request that no bin serves.
TEST_F(DeferredFrees, ServeAnAlignedRequestOfTheirSize) {
  fill_cache();
  const std::uint64_t kept = in_caches();
  const std::size_t bytes = new_size();
  give(take(bytes));
  const result<void*> aligned = allocator_->try_allocate({.bytes = bytes, .alignment = 2 * mib});
  ASSERT_TRUE(aligned.ok()) << aligned.why().message();
  EXPECT_EQ(in_caches(), kept);
  EXPECT_TRUE(allocator_->try_deallocate(*aligned).ok());
}

TEST_F(DeferredFrees, AreCheckedLikeAnyOther) {
  fill_cache();
  const std::size_t bytes = new_size();
  void* const p = take(bytes);
  EXPECT_EQ(
      locks_of([&] { EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = bytes + 512}).code(), errc::wrong_size); }), 1U);
  give(p, {.bytes = bytes});
  EXPECT_EQ(allocator_->try_deallocate(p).code(), errc::double_free);
  std::thread{[&] { EXPECT_EQ(allocator_->try_deallocate(p).code(), errc::double_free); }}.join();
  EXPECT_EQ(stats().misuses, 3U);
}

TEST_F(DeferredFrees, AreFreeToWhoeverAsks) {
  fill_cache();
  const statistics before = stats();
  std::vector<void*> some = take_new(waiting_at_most);
  for (void* const p : some) give(p);
  EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  EXPECT_FALSE(allocator_->describe(some.front()).ok());
  const statistics now = stats();
  EXPECT_EQ(now.live_bytes, before.live_bytes);
  EXPECT_EQ(now.live_blocks, before.live_blocks);
  EXPECT_EQ(now.thread_cached_bytes, before.thread_cached_bytes) << "the heap has them";
  EXPECT_EQ(now.largest_free_bytes, before.largest_free_bytes);
  EXPECT_EQ(now.frees - before.frees, some.size());
}

TEST_F(DeferredFrees, GoBackWithTrimWhosEverTheyAre) {
  open("caching");
  const parked_thread other{[this] {
    fill_cache();
    give(take(100 * mib));
  }};
  EXPECT_GE(allocator_->trim(0).returned_bytes, 100 * mib);
  EXPECT_EQ(stats().reserved_bytes, 0U);
}

TEST_F(DeferredFrees, OfSeveralStreamsWaitApart) {
  const std::array<stream_ref, 2> streams{device_.create_stream(), device_.create_stream()};
  for (const stream_ref s : streams) fill_cache(s);
  std::vector<void*> blocks;
  for (std::size_t k = 0; k < 2 * waiting_at_most; ++k) blocks.push_back(take(new_size(), streams[k % 2]));
  const std::uint64_t live = stats().live_blocks;
  for (void* const p : blocks) give(p);
  ASSERT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  void* const p = take(new_size(), streams[0]);
  EXPECT_EQ(stats().live_blocks, live - blocks.size() + 1);
  give(p);
  for (const stream_ref s : streams) {
    EXPECT_TRUE(allocator_->stream_release(s).ok());
    EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  }
  EXPECT_EQ(stats().live_blocks, live - blocks.size());
  EXPECT_EQ(in_caches(), 0U);
}

}  // namespace
}  // namespace gpumem::caches
