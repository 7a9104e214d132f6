/// One thread allocates blocks and another one frees them, as a forward and an autograd thread do.
#include <array>
#include <atomic>
#include <cstdint>

#include "cached.hpp"

namespace gpumem::caches {
namespace {

class HandOff : public cached_program {};

// The threads take turns, so that the figures are the same in every run.
TEST_F(HandOff, ManyRoundsTakeNoMoreMemoryAndFewLocks) {
  constexpr int rounds = sanitized ? 300 : 2'000;
  constexpr int warm_up = 50;
  constexpr std::size_t blocks = 64;
  std::array<void*, blocks> handed{};
  std::barrier turn{2};
  std::thread frees{[&] {
    for (int round = 0; round < rounds; ++round) {
      turn.arrive_and_wait();
      for (void* const p : handed) give(p);
      turn.arrive_and_wait();
    }
  }};
  statistics warm;
  std::uint64_t most_out = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t k = 0; k < blocks; ++k) handed[k] = take(std::array{512UL, 4096UL, 20'000UL, 90'000UL}[k % 4]);
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    if (round == warm_up) warm = stats();
    if (round >= warm_up) most_out = std::max(most_out, in_caches());
  }
  frees.join();
  const statistics end = stats();
  EXPECT_EQ(end.reserved_bytes, warm.reserved_bytes);
  EXPECT_EQ(end.peak_live_bytes, warm.peak_live_bytes);
  EXPECT_EQ(end.live_blocks, 0U);
  EXPECT_LE(most_out, 4 * end.peak_live_bytes) << "what is on its way between the two does not pile up";
  const double pairs = static_cast<double>(end.allocations - warm.allocations);
  EXPECT_GT(pairs, 0);
  EXPECT_LE(static_cast<double>(end.locks - warm.locks) / pairs, 0.5)
      << "locks for an allocation and its free; without caches two";
}

// Runs of one small size reach the depot once per batch. Blocks in the depot are counted, and a second free of one is
// refused.
TEST_F(HandOff, LongRunsOfSmallBlocksTakeALockABatch) {
  constexpr int rounds = sanitized ? 10 : 40;
  std::vector<void*> handed(1500);
  std::barrier turn{2};
  std::uint64_t refused = 0;
  std::thread frees{[&] {
    for (int round = 0; round < rounds; ++round) {
      turn.arrive_and_wait();
      for (void* const p : handed) give(p);
      for (void* const p : handed) refused += allocator_->try_deallocate(p).code() == errc::double_free ? 1U : 0U;
      turn.arrive_and_wait();
    }
  }};
  statistics warm;
  for (int round = 0; round < rounds; ++round) {
    if (round == 3) warm = stats();
    for (void*& p : handed) p = take(4096);
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    EXPECT_EQ(stats().live_blocks, 0U);
    EXPECT_GE(in_caches(), handed.size() * 4096) << "all of it is on its way back";
    EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  }
  EXPECT_EQ(refused, rounds * handed.size());
  const statistics end = stats();
  const double pairs = static_cast<double>(end.allocations - warm.allocations);
  const double locks = static_cast<double>(end.locks - warm.locks) - pairs;  // each refused free took one
  EXPECT_LE(locks / pairs, 0.08) << "a lock each 30 blocks on either side, and those of this test";
  frees.join();
  EXPECT_EQ(stats().reserved_bytes, warm.reserved_bytes);
  static_cast<void>(allocator_->trim(0, UINT64_MAX));
  EXPECT_EQ(in_caches(), 0U) << "nothing stays in the depot";
}

// Two threads free the same run while the bins of both fill up. Each block is freed once.
TEST_F(HandOff, OfTwoThatFreeARunAtOnceOneHasEachBlock) {
  constexpr int rounds = sanitized ? 20 : 100;
  std::vector<void*> handed(1500);
  std::atomic<std::uint64_t> freed{0};
  std::barrier turn{3};
  const auto frees = [&] {
    for (int round = 0; round < rounds; ++round) {
      turn.arrive_and_wait();
      std::uint64_t mine = 0;
      for (void* const p : handed) mine += allocator_->try_deallocate(p).ok() ? 1U : 0U;
      freed += mine;
      turn.arrive_and_wait();
    }
  };
  std::thread one{frees};
  std::thread other{frees};
  for (int round = 0; round < rounds; ++round) {
    for (void*& p : handed) p = *allocator_->try_allocate({.bytes = 4096});  // not told to the referee, as the frees
    turn.arrive_and_wait();
    turn.arrive_and_wait();
  }
  one.join();
  other.join();
  EXPECT_EQ(freed, rounds * handed.size());
  EXPECT_EQ(stats().live_blocks, 0U);
  EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
}

// The free names its stream, or runs on a third one. The two threads exchange roles.
TEST_F(HandOff, StreamsAreKeptOnAnyFreeingThread) {
  const std::array streams{device_.create_stream(), device_.create_stream()};
  std::array<std::vector<void*>, 2> handed;
  std::barrier turn{2};
  const auto work = [&](std::size_t me) {
    std::uint64_t random = me + 1;
    for (int round = 0; round < (sanitized ? 60 : 300); ++round) {
      for (int k = 0; k < 40; ++k) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        const std::size_t bytes = 1 + (random >> 33) % 60'000;
        void* const p = take(bytes, streams[me]);
        device_.enqueue_use(streams[me], 1000, reinterpret_cast<std::uintptr_t>(p), bytes);
        handed[me].push_back(p);
      }
      turn.arrive_and_wait();
      for (void* const p : handed[1 - me]) give(p, round % 2 == 0 ? free_args{} : free_args{.stream = streams[1 - me]});
      handed[1 - me].clear();
      turn.arrive_and_wait();
    }
  };
  std::thread other{[&] { work(1); }};
  work(0);
  other.join();
  EXPECT_EQ(stats().live_blocks, 0U);
  EXPECT_EQ(stats().allocations, stats().frees);
}

// After a free on another stream the block belongs to that stream, and the block's former stream must wait for it.
TEST_F(HandOff, AFreeOnAnotherStreamMovesTheBlockThere) {
  const stream_ref own = device_.create_stream();
  const stream_ref other = device_.create_stream();
  fill_cache(own);
  fill_cache(other);
  void* const p = take(4096, own);
  const result<fence> f = device_.record(own);
  ASSERT_TRUE(f.ok());
  ASSERT_TRUE(device_.wait_stream(other, *f).ok());
  device_.drop(*f);
  device_.enqueue_use(other, 1'000'000, reinterpret_cast<std::uintptr_t>(p), 4096);
  give(p, {.stream = other});
  EXPECT_EQ(take(4096, other), p);
  give(p, {.stream = other});
}

}  // namespace
}  // namespace gpumem::caches
