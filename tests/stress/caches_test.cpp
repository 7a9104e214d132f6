/// The stress test with threads that come and go and blocks that change hands, while others empty every cache.
#include "stress.hpp"

namespace gpumem::stress {
namespace {

// Short-lived threads with caches in both pools: their cached blocks must serve others after their end.
TEST_P(Stress, ThreadsComeAndGoBesideTheWorkers) {
  std::atomic<std::uint64_t> threads{0};
  const auto come_and_go = [&] {
    std::thread{[&, number = ++threads] {
      std::uint64_t random = 0x9e3779b97f4a7c15U * number;
      std::vector<held_block> mine;
      for (int step = 0; step < 60; ++step) {
        const std::uint64_t r = next(random);
        if (r % 8 == 0) {
          if (const auto b = exchange_.take()) give(*b);
        } else if (r % 8 < 4 && !mine.empty()) {
          if (r % 3 == 0) {
            exchange_.put(mine.back());
          } else {
            give(mine.back());
          }
          mine.pop_back();
        } else if (const auto b = take(512 * (1 + (r >> 8) % 20), {}, static_cast<int>(r >> 4 & 1))) {
          use(*b, {}, r >> 8 & 0xffff);
          mine.push_back(*b);
        }
      }
      for (const held_block& b : mine) give(b);
    }}.join();
  };
  const auto look = [&] {
    for (int pool = 0; pool < 2; ++pool) {
      const statistics s = *allocator_->stats(pool);
      EXPECT_EQ(s.reserved_bytes,
                s.live_bytes + s.thread_cached_bytes + s.cached_bytes + s.fenced_bytes + s.idle_bytes + s.leaked_bytes);
      const status proven = allocator_->check(pool);
      EXPECT_TRUE(proven.ok()) << proven.message();
    }
    std::this_thread::yield();
  };
  const auto flush = [&] {
    static_cast<void>(allocator_->trim(0));
    EXPECT_FALSE(take(97 * mib, {}, 1).has_value());  // refused, after every step that could help
    std::this_thread::yield();
  };
  run_beside(come_and_go, come_and_go, look, flush);
  EXPECT_GT(threads.load(), 1U);
}

// Small blocks of few sizes pass between threads on the streams of both, while others empty every cache.
TEST_P(Stress, HandOffsGoOnWhileCachesAreEmptied) {
  constexpr std::size_t hands = 4;
  std::array<exchange, hands> to;
  std::atomic<unsigned> working{hands};
  std::vector<std::thread> threads;
  for (std::size_t me = 0; me < hands; ++me) {
    threads.emplace_back([&, me] {
      std::uint64_t random = 0x9e3779b97f4a7c15U * (me + 1);
      const stream_ref own = device_.create_stream();
      for (int step = 0; step < steps; ++step) {
        const std::uint64_t r = next(random);
        const stream_ref s = r % 4 == 0 ? stream_ref{} : own;
        if (const auto b = take(4096 * (1 + (r >> 8) % 3), s, 0)) {
          use(*b, s, r >> 8 & 0xffff);
          to.at((me + 1) % hands).put(*b);
        }
        if (const auto b = to.at(me).take()) give(*b);
      }
      --working;
    });
  }
  std::thread empties{[&] {
    do {
      static_cast<void>(allocator_->trim(0));
      EXPECT_TRUE(allocator_->check(0).ok());
      std::this_thread::yield();
    } while (working.load() != 0);
  }};
  for (std::thread& t : threads) t.join();
  empties.join();
  for (exchange& rest : to) {
    while (const auto b = rest.take()) give(*b);
  }
  EXPECT_EQ(allocator_->stats(0)->live_bytes, 0U);
}

// Threads free blocks that they may no longer own, at any moment: the second free is refused, and the pool stays
// intact.
TEST_P(Stress, MisuseFromManyThreadsLeavesThePoolWhole) {
  constexpr std::size_t places = 32;
  std::array<std::atomic<void*>, places> shared{};
  std::atomic<std::uint64_t> allocated{0};
  std::atomic<std::uint64_t> freed{0};
  std::atomic<std::uint64_t> refused{0};
  const auto free_any = [&](void* p, const free_args& stated) {
    const status s = allocator_->try_deallocate(p, stated);
    if (s.ok()) {
      ++freed;
      return;
    }
    const errc why = s.code();
    EXPECT_TRUE(why == errc::double_free || why == errc::unknown_pointer || why == errc::wrong_size) << s.message();
    ++refused;
  };
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < workers; ++number) {
    threads.emplace_back([&, number] {
      std::uint64_t random = 0x9e3779b97f4a7c15U * (number + 1);
      for (int step = 0; step < steps; ++step) {
        const std::uint64_t r = next(random);
        std::atomic<void*>& place = shared.at((r >> 8) % places);
        if (r % 4 != 0) {
          const std::size_t bytes = 512 * (1 + (r >> 16) % 3) - (r >> 20) % 2;
          const result<void*> got = allocator_->try_allocate({.bytes = bytes, .device = static_cast<int>(r >> 4 & 1)});
          ASSERT_TRUE(got.ok()) << got.why().message();
          ++allocated;
          if (void* const former = place.exchange(*got)) free_any(former, {});
        } else if (void* const p = place.load()) {  // and leaves it in place, for another thread to free again
          free_any(p, r % 8 == 0 ? free_args{} : free_args{.bytes = 512});
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (int pool = 0; pool < 2; ++pool) {
    const status proven = allocator_->check(pool);
    EXPECT_TRUE(proven.ok()) << proven.message();
  }
  const statistics a = *allocator_->stats(0);
  const statistics b = *allocator_->stats(1);
  EXPECT_EQ(a.allocations + b.allocations, allocated.load());
  EXPECT_EQ(a.frees + b.frees, freed.load());
  EXPECT_EQ(a.misuses + b.misuses, refused.load());
  EXPECT_EQ(a.live_blocks + b.live_blocks, allocated.load() - freed.load());
  EXPECT_GT(refused.load(), 0U);
  for (std::atomic<void*>& place : shared) {
    if (void* const p = place.load()) static_cast<void>(allocator_->try_deallocate(p));
  }
  EXPECT_EQ(allocator_->stats(0)->live_blocks + allocator_->stats(1)->live_blocks, 0U)
      << "a block that was lost by a refused free";
}

}  // namespace
}  // namespace gpumem::stress
