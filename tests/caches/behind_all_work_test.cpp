/// Frees that are ordered behind all work of the device (a preloaded cudaFree) and take no lock. No request gets the
/// block before all this work is done, and none waits for later work.
#include <random>

#include "cached.hpp"
#include "forwarding_device.hpp"

namespace gpumem::caches {
namespace {

class BehindAllWork : public cached_program {
 protected:
  void SetUp() override {
    cached_program::SetUp();
    reopen("64MiB");
  }
  void reopen(std::string_view limit) {
    allocator_.reset();
    settings s;
    ASSERT_TRUE(s.set("policy", "grab_all").ok());
    ASSERT_TRUE(s.set("limit", limit).ok());
    s.stream_ids = stream_id_mode::notify;
    device* const devices[] = {&hooked_};
    auto opened = pooled_allocator::open(devices, s);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    allocator_ = *std::move(opened);
    home_ = device_.create_stream();
    all_ = device_.create_stream();
    ASSERT_TRUE(allocator_->stand_for_all_work(all_).ok());
    give(take_any(512));  // gives the thread a cache
  }
  void* take_any(std::size_t bytes) { return take(bytes, home_); }
  /// Frees the block behind all work. True if the free took no lock.
  bool give_behind_all(void* p) {
    device_.given_back(reinterpret_cast<std::uintptr_t>(p));
    if (allocator_->free_behind_all_work(p)) return true;
    EXPECT_TRUE(allocator_->try_deallocate(p, {.stream = all_}).ok());
    return false;
  }
  void use(stream_ref s, std::uint64_t lag_ns, const void* p, std::uint64_t bytes) {
    device_.enqueue_use(s, lag_ns, reinterpret_cast<std::uintptr_t>(p), bytes);
  }

  forwarding_device hooked_{device_};
  stream_ref home_;
  stream_ref all_;
};

TEST_F(BehindAllWork, TheBlockWaitsForEarlierWorkOnly) {
  void* const p = take_any(40 * mib);
  const stream_ref s = device_.create_stream();
  use(s, 1'000'000, p, 40 * mib);
  EXPECT_TRUE(give_behind_all(p));
  device_.enqueue(s, 3'600'000'000'000);
  void* const other = take_any(20 * mib);
  EXPECT_NE(other, p) << "there is other memory, and nothing is waited for";
  device_.advance_by(1'000'000);
  EXPECT_EQ(take_any(40 * mib), p);
  EXPECT_LT(device_.in_calls_ns(), 1'000'000'000U);
}

TEST_F(BehindAllWork, ABatchIsFencedOnceAndBroughtByOneLock) {
  std::vector<void*> blocks(64);
  for (void*& p : blocks) p = take_any(4096);
  const statistics before = stats();
  for (void* const p : blocks) EXPECT_TRUE(give_behind_all(p));
  EXPECT_EQ(stats().locks, before.locks);
  EXPECT_EQ(stats().live_blocks, before.live_blocks - 64);
  EXPECT_EQ(stats().thread_cached_bytes, before.thread_cached_bytes + 64 * 4096);
  EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  take_any(4096);
  EXPECT_EQ(stats().locks, before.locks + 1);
  EXPECT_EQ(stats().fences, before.fences + 4);
  EXPECT_EQ(stats().thread_cached_bytes, before.thread_cached_bytes);
}

TEST_F(BehindAllWork, DeferredFreesServeOtherThreadsWhenMemoryIsShort) {
  void* const p = take_any(50 * mib);
  const parked_thread frees{[&] {
    give(take_any(4096));
    EXPECT_TRUE(give_behind_all(p));
  }};
  EXPECT_NE(take_any(50 * mib), nullptr);
}

TEST_F(BehindAllWork, WithoutAFenceYetItIsRecordedThen) {
  void* const p = take_any(30 * mib);
  void* const q = take_any(30 * mib);
  const stream_ref s = device_.create_stream();
  use(s, 1'000'000, p, 30 * mib);
  EXPECT_TRUE(give_behind_all(p)) << "less than 32 MiB, and one free";
  EXPECT_NE(take_any(30 * mib), nullptr);
  EXPECT_GE(device_.now_ns(), 1'000'000U) << "its use was waited for";
  give(q);
}

TEST_F(BehindAllWork, AThreadThatEndsLeavesItBehindItsFence) {
  void* const p = take_any(40 * mib);
  const stream_ref s = device_.create_stream();
  use(s, 1'000'000, p, 40 * mib);
  std::thread{[&] {
    give(take_any(4096));
    EXPECT_TRUE(give_behind_all(p));
  }}.join();
  device_.enqueue(s, 3'600'000'000'000);
  device_.advance_by(1'000'000);
  EXPECT_EQ(take_any(40 * mib), p);
}

TEST_F(BehindAllWork, ASecondFreeIsRefused) {
  void* const p = take_any(4096);
  EXPECT_TRUE(give_behind_all(p));
  EXPECT_FALSE(allocator_->free_behind_all_work(p));
  EXPECT_EQ(allocator_->try_deallocate(p, {.stream = all_}).code(), errc::double_free);
  EXPECT_FALSE(allocator_->free_behind_all_work(static_cast<char*>(p) + 512));
  EXPECT_FALSE(allocator_->describe(p).ok());
}

TEST_F(BehindAllWork, NoFenceIsRecordedOnceACaptureHasBegun) {
  std::vector<void*> blocks(17);
  for (void*& p : blocks) p = take_any(4096);
  const stream_ref s = device_.create_stream();
  const std::uint64_t recorded = stats().fences;
  ASSERT_TRUE(allocator_->capture_begin(s).ok());
  ASSERT_TRUE(device_.begin_capture(s).ok());
  for (void* const p : blocks) EXPECT_TRUE(give_behind_all(p));
  give(take_any(4096));
  EXPECT_EQ(stats().fences, recorded);
  ASSERT_TRUE(device_.end_capture(s).ok()) << "spoilt";
  const auto graph = allocator_->capture_end(s);
  ASSERT_TRUE(graph.ok());
  EXPECT_TRUE(allocator_->graph_release(*graph).ok());
  void* const whole = take_any(60 * mib);
  give(whole);
}

// A record takes long: the capture begins when it is done.
TEST_F(BehindAllWork, ACaptureWaitsForARecordUnderWay) {
  void* const p = take_any(40 * mib);
  const stream_ref s = device_.create_stream();
  std::atomic<bool> recording{false};
  std::atomic<bool> begun{false};
  hooked_.before_record = [&] {
    recording = true;
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    EXPECT_FALSE(begun);
  };
  std::thread captures{[&] {
    while (!recording) std::this_thread::yield();
    EXPECT_TRUE(allocator_->capture_begin(s).ok());
    begun = true;
  }};
  EXPECT_TRUE(give_behind_all(p));
  captures.join();
  hooked_.before_record = nullptr;
  EXPECT_TRUE(allocator_->graph_release(*allocator_->capture_end(s)).ok());
}

TEST_F(BehindAllWork, AFailedRecordLosesNothing) {
  void* const p = take_any(40 * mib);
  device_.fail_nth(device_call::record, 1);
  EXPECT_TRUE(give_behind_all(p));
  EXPECT_EQ(take_any(40 * mib), p) << "another fence was recorded";
}

// Threads allocate for any stream, use the blocks on their own streams, and pass some to other threads to free.
TEST_F(BehindAllWork, ThreadsAndCapturesInAnyOrder) {
  reopen("16MiB");
  constexpr int threads = 4;
  constexpr int steps = sanitized ? 2'000 : 15'000;
  std::array<std::atomic<void*>, 16> passed{};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      std::mt19937 random{static_cast<unsigned>(t)};
      const stream_ref own = device_.create_stream();
      for (int i = 0; i < steps; ++i) {
        const std::size_t bytes = 512 * (1 + random() % 200);
        const auto got = allocator_->try_allocate({.bytes = bytes, .stream = home_});
        if (got) {
          device_.handed_out(reinterpret_cast<std::uintptr_t>(*got), bytes, home_);
          use(own, random() % 5'000, *got, bytes);
        }
        void* const to_free = passed[random() % passed.size()].exchange(got ? *got : nullptr);
        if (to_free != nullptr) give_behind_all(to_free);
        if (t == 0 && i % 500 == 0) {
          ASSERT_TRUE(allocator_->capture_begin(own).ok());
          ASSERT_TRUE(allocator_->graph_release(*allocator_->capture_end(own)).ok());
        }
        if (t == 1 && i % 1000 == 0) {
          EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
        }
        device_.advance_by(200);
      }
    });
  }
  for (std::thread& t : all) t.join();
  for (std::atomic<void*>& p : passed) {
    if (p != nullptr) give_behind_all(p);
  }
  EXPECT_EQ(stats().live_blocks, 0U);
  EXPECT_EQ(stats().allocations, stats().frees);
  device_.advance_by(1'000'000'000);
  give(take_any(16 * mib));
}

}  // namespace
}  // namespace gpumem::caches
