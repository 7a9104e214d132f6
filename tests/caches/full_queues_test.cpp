/// While the driver blocks because a stream's queue is full, other threads are served.
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "cached.hpp"
#include "forwarding_device.hpp"

namespace gpumem::caches {
namespace {

/// A record blocks while the queue of a stream is full.
class FullQueues : public cached_program, public ::testing::WithParamInterface<stream_id_mode> {
 protected:
  void SetUp() override {
    cached_program::SetUp();
    allocator_.reset();
    settings s;
    ASSERT_TRUE(s.set("policy", "grab_all").ok());
    ASSERT_TRUE(s.set("limit", "64MiB").ok());
    s.stream_ids = GetParam();
    s.reuse = reuse_;
    device* const devices[] = {&hooked_};
    auto opened = pooled_allocator::open(devices, s);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    allocator_ = *std::move(opened);
  }
  void TearDown() override {
    if (other_.joinable()) other_.join();
    cached_program::TearDown();
  }
  /// Makes the next record block until another thread has been served, or for 20 s.
  void block_records() { block(&hooked_.before_record); }
  /// The same for the next wait of a stream on the device.
  void block_waits() { block(&hooked_.before_wait_stream); }
  void block(std::function<void()>* call) {
    *call = [this, call] {
      *call = nullptr;
      ++blocked_;
      std::promise<void> served;
      auto done = served.get_future();
      other_ = std::thread{[this, served = std::move(served)]() mutable {
        give(take(others_ask_, device_.create_stream()));
        served.set_value();
      }};
      others_are_served_ = done.wait_for(std::chrono::seconds{20}) == std::future_status::ready;
    };
  }

  /// Runs `does` on another thread. Returns once that thread sleeps or has finished, however long it takes to start.
  void start_until_it_waits(const std::function<void()>& does) {
    std::atomic<pid_t> thread{0};
    const auto is_done = std::make_shared<std::atomic<bool>>(false);
    other_ = std::thread{[does, &thread, is_done] {
      thread = ::gettid();
      thread.notify_one();
      does();
      *is_done = true;
    }};
    thread.wait(0);
    const std::string file = "/proc/self/task/" + std::to_string(thread) + "/stat";
    for (int asleep = 0, looks = 0; asleep < 3 && !*is_done && looks < 10'000; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
      std::string number, name;
      char state = ' ';
      std::ifstream{file} >> number >> name >> state;
      asleep = state == 'S' ? asleep + 1 : 0;
    }
  }

  forwarding_device hooked_{device_};
  stream_reuse reuse_ = stream_reuse::poll;
  std::size_t others_ask_ = 2 * mib;
  std::thread other_;
  int blocked_ = 0;
  bool others_are_served_ = false;
};

TEST_P(FullQueues, DelayNoOtherThreadWhileAFenceIsRecordedForAnotherStreamsMemory) {
  const stream_ref a = device_.create_stream();
  void* const of_a = take(40 * mib, a);
  void* const kept = take(8 * mib, a);
  device_.enqueue_use(a, 1'000'000, reinterpret_cast<std::uintptr_t>(of_a), 40 * mib);
  give(of_a);
  block_records();
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 60 * mib, .stream = device_.create_stream()}).ok());
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
  give(kept);
}

TEST_P(FullQueues, DelayNoOtherThreadWhileAUsedBlockIsFreed) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  void* const shared = take(30 * mib, a);
  ASSERT_TRUE(allocator_->record_use(shared, b).ok());
  device_.enqueue_use(b, 1'000'000, reinterpret_cast<std::uintptr_t>(shared), 30 * mib);
  block_records();
  give(shared);
  EXPECT_EQ(blocked_, 1) << "a stream lives until the blocks that it uses are freed";
  EXPECT_TRUE(others_are_served_);
  device_.advance_by(2'000'000);
  void* const again = take(60 * mib, a);
  EXPECT_EQ(again, shared) << "its fence is done";
  give(again);
}

TEST_P(FullQueues, DelayNoOtherThreadWhileAStreamEnds) {
  const stream_ref a = device_.create_stream();
  give(take(mib, device_.create_stream()));  // a second stream: what is idle is not the first one's
  give(take(30 * mib, a));
  block_records();
  EXPECT_TRUE(allocator_->stream_release(a).ok());
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
}

// A request that needs the memory behind the fence waits for its record, as the last step before a refusal.
TEST_P(FullQueues, DelayRequestsThatNeedTheMemoryBehindThem) {
  const stream_ref a = device_.create_stream();
  give(take(mib, device_.create_stream()));
  give(take(60 * mib, a));
  std::promise<void> asked;
  hooked_.before_record = [&] {
    hooked_.before_record = nullptr;
    other_ = std::thread{[&] {
      asked.set_value();
      give(take(60 * mib, device_.create_stream()));
    }};
    asked.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds{20});  // it gets no further than to the fence
  };
  EXPECT_TRUE(allocator_->stream_release(a).ok());
  other_.join();
}

// Two fences are missing. A capture begins during the record of the first; recording the second would invalidate it.
TEST_P(FullQueues, RecordNothingMoreOnceACaptureHasBegun) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  const stream_ref captured = device_.create_stream();
  give(take(mib, captured));
  void* const of_a = take(20 * mib, a);
  void* const of_b = take(20 * mib, b);
  give(of_a);
  give(of_b);
  int records = 0;
  hooked_.before_record = [&] {
    if (++records != 1) return;
    start_until_it_waits([&] { EXPECT_TRUE(allocator_->capture_begin(captured).ok()); });
  };
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 60 * mib, .stream = captured}).ok());
  other_.join();
  EXPECT_EQ(records, 1);
  EXPECT_TRUE(allocator_->capture_end(captured).ok());
  void* const all = take(60 * mib, captured);
  if (GetParam() == stream_id_mode::notify) {
    EXPECT_GT(records, 1) << "the other one is recorded now";
  } else {
    EXPECT_EQ(records, 1) << "one event on the context covers both";
  }
  give(all);
}

// Under `host` a record comes before the host's wait.
class FullQueuesUnderHost : public FullQueues {
 protected:
  FullQueuesUnderHost() { reuse_ = stream_reuse::host; }
};

TEST_P(FullQueuesUnderHost, DelayNoOtherThreadWhileTheHostWaitsForABlock) {
  const stream_ref a = device_.create_stream();
  give(take(mib, device_.create_stream()));  // what is idle is not the first stream's
  void* const of_a = take(40 * mib, a);
  device_.enqueue_use(a, 1'000'000, reinterpret_cast<std::uintptr_t>(of_a), 40 * mib);
  give(of_a);
  block_records();
  void* const of_b = take(40 * mib, device_.create_stream());
  EXPECT_EQ(of_b, of_a);
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
  give(of_b);
}

// One thread's record of a fence on b takes long; another thread waits for a, whose fence is already recorded.
TEST_P(FullQueuesUnderHost, DelayNoThreadThatWaitsForAFenceThatIsRecorded) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  void* const of_a = take(28 * mib, a);
  void* const of_b = take(30 * mib, b);
  device_.enqueue_use(a, 1'000'000, reinterpret_cast<std::uintptr_t>(of_a), 28 * mib);
  give(of_a);
  give(of_b);
  EXPECT_TRUE(allocator_->stream_release(a).ok());
  others_ask_ = 28 * mib;
  block_records();
  EXPECT_TRUE(allocator_->stream_release(b).ok());
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
}

// cuStreamWaitEvent blocks as well.
class FullQueuesUnderDevice : public FullQueues {
 protected:
  FullQueuesUnderDevice() { reuse_ = stream_reuse::device; }
  void use(stream_ref s, void* at, std::size_t bytes) {
    device_.enqueue_use(s, 1'000'000, reinterpret_cast<std::uintptr_t>(at), bytes);
  }
  [[nodiscard]] std::uint64_t waits() const { return stats().device_waits; }
};

TEST_P(FullQueuesUnderDevice, DelayNoOtherThreadWhileAStreamIsOrderedBehindAnother) {
  const stream_ref a = device_.create_stream();
  give(take(mib, device_.create_stream()));  // what is idle is not the first stream's
  void* const of_a = take(40 * mib, a);
  use(a, of_a, 40 * mib);
  give(of_a);
  block_waits();
  void* const of_b = take(40 * mib, device_.create_stream());
  EXPECT_EQ(of_b, of_a);
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
  EXPECT_EQ(stats().host_waits, 0U);
  give(of_b);
}

// Under `query` gpumem records the fence of a use only when a request needs memory, and the host waits for it.
class FullQueuesOfUses : public FullQueuesUnderDevice {};

TEST_P(FullQueuesOfUses, DelayNoOtherThreadWhileAStreamIsOrderedBehindThem) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  void* const shared = take(40 * mib, a);
  ASSERT_TRUE(allocator_->record_use(shared, b).ok());
  use(b, shared, 40 * mib);
  give(shared);
  block_waits();
  void* const again = take(40 * mib, a);
  EXPECT_EQ(again, shared);
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
  give(again);
}

TEST_P(FullQueuesUnderDevice, DelayNoOtherThreadWhileAStreamIsOrderedBehindAllOthers) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  void* const of_a = take(20 * mib, a);
  void* const of_b = take(20 * mib, b);
  use(a, of_a, 20 * mib);
  use(b, of_b, 20 * mib);
  give(of_a);
  give(of_b);
  block_waits();
  void* const all = take(40 * mib, device_.create_stream());
  EXPECT_EQ(blocked_, 1);
  EXPECT_TRUE(others_are_served_);
  EXPECT_GE(waits(), 2U) << "what the other thread freed may be taken, too";
  EXPECT_EQ(stats().host_waits, 0U);
  give(all);
}

// By the time the wait is made, another stream has the block that the request found; it searches for another one.
TEST_P(FullQueuesUnderDevice, LookAgainForTheBlockOnceTheWaitIsMade) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  void* const first = take(20 * mib, a);
  void* const second = take(24 * mib, a);
  void* const rest = take(20 * mib, b);
  use(a, first, 20 * mib);
  use(a, second, 24 * mib);
  give(first);
  give(second);
  void* taken = nullptr;
  hooked_.before_wait_stream = [&] {
    hooked_.before_wait_stream = nullptr;
    other_ = std::thread{[&] { taken = take(20 * mib, a); }};
    other_.join();
  };
  void* const got = take(20 * mib, b);
  EXPECT_EQ(taken, first);
  EXPECT_EQ(got, second) << "behind the same wait";
  EXPECT_EQ(waits(), 1U);
  for (void* const p : {taken, got, rest}) give(p);
}

// The wait does not cover blocks that are freed while it is made.
TEST_P(FullQueuesUnderDevice, ServeNothingThatWasFreedAfterTheWait) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  void* const large = take(40 * mib, a);
  void* const small = take(20 * mib, a);
  use(a, large, 40 * mib);
  give(large);
  hooked_.before_wait_stream = [&] {
    hooked_.before_wait_stream = nullptr;
    use(a, small, 20 * mib);  // the referee reports who has it before this is done
    other_ = std::thread{[&] { give(small, {.stream = a}); }};
    other_.join();
  };
  void* const got = take(20 * mib, b);
  EXPECT_EQ(waits(), 2U) << "the two blocks are one now, and the later free is behind another wait";
  use(b, got, 20 * mib);
  give(got);
}

// A capture that begins meanwhile lets the current wait finish, and no further wait is made.
TEST_P(FullQueuesUnderDevice, MakeNoMoreWaitsOnceACaptureHasBegun) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  const stream_ref captured = device_.create_stream();
  give(take(mib, captured));
  void* const of_a = take(30 * mib, a);
  void* const of_b = take(30 * mib, b);
  use(a, of_a, 30 * mib);
  use(b, of_b, 30 * mib);
  give(of_a);
  give(of_b);
  int calls = 0;
  hooked_.before_wait_stream = [&] {
    if (++calls != 1) return;
    start_until_it_waits([&] { EXPECT_TRUE(allocator_->capture_begin(captured).ok()); });
  };
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 60 * mib, .stream = device_.create_stream()}).ok());
  other_.join();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(allocator_->capture_end(captured).ok());
}

std::string name_of(const ::testing::TestParamInfo<stream_id_mode>& one) {
  return one.param == stream_id_mode::query ? "query" : "notify";
}
constexpr std::array both{stream_id_mode::query, stream_id_mode::notify};
INSTANTIATE_TEST_SUITE_P(Ids, FullQueues, ::testing::ValuesIn(both), name_of);
INSTANTIATE_TEST_SUITE_P(Ids, FullQueuesUnderHost, ::testing::ValuesIn(both), name_of);
INSTANTIATE_TEST_SUITE_P(Ids, FullQueuesOfUses, ::testing::Values(stream_id_mode::notify), name_of);
INSTANTIATE_TEST_SUITE_P(Ids, FullQueuesUnderDevice, ::testing::ValuesIn(both), name_of);

}  // namespace
}  // namespace gpumem::caches
