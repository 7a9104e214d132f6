/// Misuse is also caught on the paths without a lock, and changes nothing.
#include <atomic>
#include <barrier>

#include "cached.hpp"
#include "meeting.hpp"

namespace gpumem::caches {
namespace {

class CachedMisuse : public cached_program {
 protected:
  /// Makes this thread's cache serve the next block of that size and keep it when it is freed.
  void warm(std::size_t bytes, stream_ref s = {}) {
    for (int turn = 0; turn < 3; ++turn) give(take(bytes, s));  // a size is kept when it came back
    const std::uint64_t before = stats().locks;
    give(take(bytes, s));
    ASSERT_EQ(stats().locks, before) << "no lock is taken for " << bytes << " bytes";
  }
};

TEST_F(CachedMisuse, ASecondFreeByTheSameThreadIsRefused) {
  for (const std::size_t bytes : {512UL, 4096UL, 100'000UL}) {
    warm(bytes);
    void* const p = take(bytes);
    give(p);
    const statistics before = stats();
    for (int again = 0; again < 3; ++again) {
      EXPECT_EQ(allocator_->try_deallocate(p).code(), errc::double_free);
      EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = bytes}).code(), errc::double_free);
    }
    EXPECT_EQ(stats().misuses, before.misuses + 6);
    EXPECT_EQ(stats().frees, before.frees);
    EXPECT_EQ(stats().thread_cached_bytes, before.thread_cached_bytes);
    EXPECT_EQ(take(bytes), p) << "it is in the cache once";
    EXPECT_NE(take(bytes), p);
  }
}

TEST_F(CachedMisuse, ASecondFreeByAnotherThreadIsRefused) {
  warm(4096);
  void* const p = take(4096);
  give(p);
  std::thread{[&] { EXPECT_EQ(allocator_->try_deallocate(p).code(), errc::double_free); }}.join();
  EXPECT_EQ(stats().misuses, 1U);
  std::thread{[&] {
    fill_cache();  // this thread then has a cache, which it checks first without the lock
    EXPECT_EQ(allocator_->try_deallocate(p).code(), errc::double_free);
  }}.join();
  EXPECT_EQ(stats().misuses, 2U);
}

// Two threads with caches free the same block at the same moment, many times: exactly one free succeeds.
TEST_F(CachedMisuse, OfTwoFreesAtOnceOneSucceeds) {
  constexpr int rounds = sanitized ? 4'000 : 40'000;
  for (const std::size_t bytes : {512UL, 300'000UL}) {
    warm(bytes);
    const std::uint64_t misuses_before = stats().misuses;
    void* block = allocator_->allocate(bytes);
    std::atomic<int> freed{0};
    std::atomic<int> refused{0};
    std::barrier ready{2, [&]() noexcept { block = allocator_->allocate(bytes); }};
    meeting step;  // a thread that sleeps would miss the other one
    const auto race = [&](bool states_bytes) {
      fill_cache();
      std::vector<void*> many;  // so that the bin is full, and a free looks at the block twice
      for (int k = 0; k < 100; ++k) many.push_back(allocator_->allocate(bytes));
      for (void* const p : many) allocator_->deallocate(p);
      ready.arrive_and_wait();
      for (int round = 0; round < rounds; ++round) {
        void* const p = block;
        free_args stated;
        if (states_bytes) stated.bytes = bytes;
        step.wait();
        const status s = allocator_->try_deallocate(p, stated);
        if (s.ok()) {
          ++freed;
        } else {
          EXPECT_EQ(s.code(), errc::double_free) << s.message();
          ++refused;
        }
        ready.arrive_and_wait();
      }
    };
    static_cast<void>(allocator_->try_deallocate(block));  // the barrier's first step makes the block of round 0
    std::thread other{[&] { race(true); }};
    race(false);
    other.join();
    EXPECT_EQ(freed.load(), rounds);
    EXPECT_EQ(refused.load(), rounds);
    EXPECT_EQ(stats().misuses - misuses_before, static_cast<std::uint64_t>(rounds));
    EXPECT_TRUE(allocator_->try_deallocate(block).ok());
    EXPECT_EQ(stats().live_blocks, 0U);
  }
}

TEST_F(CachedMisuse, AWrongSizeIsRefusedAndTheBlockStays) {
  for (const std::size_t bytes : {500UL, 4096UL, 100'000UL}) {
    warm(bytes);
    void* const p = take(bytes);
    const statistics before = stats();
    for (const std::size_t wrong : {bytes - 1, bytes + 1, std::size_t{0}, bytes + 512, SIZE_MAX}) {
      EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = wrong}).code(), errc::wrong_size) << wrong;
    }
    EXPECT_EQ(stats().misuses, before.misuses + 5);
    EXPECT_EQ(stats().live_bytes, before.live_bytes);
    give(p, {.bytes = bytes});
  }
}

// The cached block has 512 bytes, but the stated size must equal the size of this request.
TEST_F(CachedMisuse, AFreeWithoutAResultIsCheckedAndLogged) {
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  std::size_t refused = 0;
  for (const std::size_t bytes : {512UL, 100'000UL, std::size_t{64} << 20}) {  // the last goes to the heap
    give(take(bytes));
    void* const p = take(bytes);
    allocator_->deallocate(p, {.bytes = bytes + 1});
    allocator_->deallocate(p, {.device = 1});
    refused += 2;
    ASSERT_EQ(lines.size(), refused) << bytes;
    EXPECT_NE(lines[refused - 2].find("refused free: "), std::string::npos) << lines[refused - 2];
    EXPECT_NE(lines[refused - 2].find(std::to_string(bytes + 1)), std::string::npos) << lines[refused - 2];
    EXPECT_EQ(stats().misuses, refused);
    EXPECT_TRUE(allocator_->describe(p).ok()) << "it is still the program's";
    allocator_->deallocate(p, {.bytes = bytes});
    EXPECT_EQ(lines.size(), refused) << bytes;
  }
  static_cast<void>(set_log_sink(former));
}

TEST_F(CachedMisuse, TheSizeIsTheLatestRequestsOwn) {
  give(take(512));
  void* const p = take(100);
  EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = 512}).code(), errc::wrong_size);
  EXPECT_EQ(allocator_->describe(p)->requested_bytes, 100U);
  give(p, {.bytes = 100});
  void* const q = take(511);
  EXPECT_EQ(q, p);
  EXPECT_EQ(allocator_->try_deallocate(q, {.bytes = 100}).code(), errc::wrong_size);
  give(q, {.bytes = 511});
}

TEST_F(CachedMisuse, PointersIntoBlocksAndForeignOnesAreUnknown) {
  warm(4096);
  auto* const p = static_cast<std::byte*>(take(4096));
  for (const std::ptrdiff_t inside : {1, 8, 511, 512, 2048, 4095}) {
    EXPECT_EQ(allocator_->try_deallocate(p + inside).code(), errc::unknown_pointer) << inside;
  }
  int not_ours = 0;
  EXPECT_EQ(allocator_->try_deallocate(&not_ours).code(), errc::unknown_pointer);
  EXPECT_EQ(stats().misuses, 7U);
  EXPECT_EQ(stats().live_blocks, 1U);
  give(p);
}

TEST_F(CachedMisuse, ARefusedFreeMakesNoCache) {
  void* const p = take(4096);
  const std::uint64_t before = stats().metadata_bytes;
  std::thread{[&] {
    int not_ours = 0;
    EXPECT_EQ(allocator_->try_deallocate(&not_ours).code(), errc::unknown_pointer);
    EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = 1}).code(), errc::wrong_size);
    EXPECT_EQ(stats().metadata_bytes, before);
  }}.join();
  give(p);
}

TEST_F(CachedMisuse, CachedBlocksAreNotTheProgramsToUse) {
  warm(4096);
  void* const p = take(4096);
  give(p);
  EXPECT_EQ(allocator_->record_use(p, {}).code(), errc::unknown_pointer);
  EXPECT_EQ(allocator_->describe(p).code(), errc::unknown_pointer);
  EXPECT_EQ(take(4096), p);
  EXPECT_TRUE(allocator_->record_use(p, {}).ok());
  EXPECT_TRUE(allocator_->describe(p).ok());
}

TEST_F(CachedMisuse, AStatedDeviceIsStillChecked) {
  settings s;
  ASSERT_TRUE(s.set("pools", "128MiB,128MiB").ok());
  open(s);
  const result<void*> first = allocator_->try_allocate({.bytes = 4096, .device = 1});
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(allocator_->try_deallocate(*first).ok());
  const result<void*> p = allocator_->try_allocate({.bytes = 4096, .device = 1});
  EXPECT_EQ(allocator_->try_deallocate(*p, {.device = 0}).code(), errc::wrong_device);
  EXPECT_EQ(allocator_->try_deallocate(*p, {.device = 2}).code(), errc::wrong_device);
  EXPECT_TRUE(allocator_->try_deallocate(*p, {.device = 1}).ok());
}

}  // namespace
}  // namespace gpumem::caches
