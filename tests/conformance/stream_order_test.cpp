/// When freed memory may be reused: by its own stream at once, by another one behind a fence, and by no reused handle.
#include "setup.hpp"

namespace gpumem::conformance {
namespace {

constexpr std::size_t most = std::size_t{400} << 20;  ///< of 512 MiB, so that two such blocks need the same memory

class StreamOrder : public program {
 protected:
  /// Long against the calls of the host, which polls simulated work in real time while it waits.
  [[nodiscard]] std::uint64_t long_ns() { return is_simulated() ? 5'000'000 : 50'000'000; }
  /// The actions of a program before it frees a block of `first` on `then`.
  void order(stream_ref first, stream_ref then) {
    const result<fence> f = device_->edge().record(first);
    ASSERT_TRUE(f.ok()) << f.why().message();
    ASSERT_TRUE(device_->edge().wait_stream(then, *f).ok());
    device_->edge().drop(*f);
  }
  /// Of a free as large as `most` that states its stream. Under `query` the stream is known to live only in that call,
  /// so the fence that another stream would need is recorded there.
  [[nodiscard]] static std::uint64_t fences_of_a_named_batch() {
    return GetParam().stream_ids == stream_id_mode::query ? 1 : 0;
  }
};

TEST_P(StreamOrder, TheSameStreamReusesAtOnce) {
  const stream_ref s = device_->create_stream();
  void* const first = take(most, s);
  device_->use(s, long_ns(), first, most);
  give(first);
  void* const second = take(most, s);
  EXPECT_EQ(second, first);
  EXPECT_EQ(stats().fences, 0U);
  EXPECT_EQ(stats().host_waits, 0U);
  give(second);
}

TEST_P(StreamOrder, AnotherStreamGetsItBehindAFence) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const p = take(most, a);
  device_->use(a, long_ns(), p, most);
  give(p);
  const std::uint64_t before_ns = sim().now_ns();
  void* const q = take(most, b);
  EXPECT_EQ(q, p);
  EXPECT_GE(stats().fences, 1U);
  const std::uint64_t waited_ns = sim().now_ns() - before_ns;
  if (GetParam().reuse == stream_reuse::device) {
    EXPECT_EQ(stats().host_waits, 0U);
    EXPECT_EQ(stats().device_waits, 1U);
    EXPECT_LT(waited_ns, long_ns() / 10);
  } else {
    EXPECT_GE(stats().host_waits, 1U);
    EXPECT_EQ(stats().device_waits, 0U);
    EXPECT_GE(waited_ns, long_ns() / 10 * 9);
  }
  device_->use(b, 1000, q, most);
  give(q);
}

TEST_P(StreamOrder, AStreamThatWaitedOnceNeedNotWaitForTheSameWorkAgain) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(most / 8, a));
  for (void* p : blocks) device_->use(a, long_ns(), p, most / 8);
  give_all(blocks);
  for (int i = 0; i < 8; ++i) blocks.push_back(take(most / 8, b));
  // Under `poll` the pool grows instead, and may first ask each of the three streams whether the device is idle.
  EXPECT_LE(stats().fences, GetParam().reuse == stream_reuse::poll ? 3U : 1U)
      << "one fence serves all that was freed before it";
  EXPECT_LE(stats().device_waits + stats().host_waits, 1U);
  give_all(blocks);
}

TEST_P(StreamOrder, ABlockFreedOnAnotherStreamIsThatStreams) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const p = take(most, a);
  device_->use(a, long_ns(), p, most);
  order(a, b);
  give(p, {.stream = b});
  EXPECT_EQ(take(most, b), p);
  EXPECT_EQ(stats().fences, fences_of_a_named_batch());
  give(p);
}

TEST_P(StreamOrder, ARecordedUseKeepsTheBlockUntilItIsDone) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  auto* const p = static_cast<char*>(take(most, a));
  ASSERT_TRUE(allocator_->record_use(p + most / 2, b).ok());
  device_->use(b, long_ns(), p, most);
  give(p);
  void* const q = take(most, a);  // its own stream has to wait as well
  EXPECT_EQ(q, p);
  EXPECT_GE(stats().fences, 1U);
  give(q);
}

TEST_P(StreamOrder, AThirdStreamWaitsForTheOwnerAndTheUser) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  const stream_ref c = device_->create_stream();
  void* const p = take(most, a);
  ASSERT_TRUE(allocator_->record_use(p, b).ok());
  device_->use(a, long_ns(), p, most);
  device_->use(b, 2 * long_ns(), p, most);
  give(p);
  EXPECT_EQ(take(most, c), p);
  give(p);
}

TEST_P(StreamOrder, AUseByItsOwnStreamCostsNoFence) {
  const stream_ref s = device_->create_stream();
  void* const p = take(most, s);
  ASSERT_TRUE(allocator_->record_use(p, s).ok());
  give(p);
  EXPECT_EQ(take(most, s), p);
  EXPECT_EQ(stats().fences, 0U);
  give(p);
}

TEST_P(StreamOrder, ARecordedUseThatTheFreeIsOrderedBehindCostsNoFence) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const p = take(most, a);
  ASSERT_TRUE(allocator_->record_use(p, b).ok());
  device_->use(b, long_ns(), p, most);
  order(a, b);
  give(p, {.stream = b});
  EXPECT_EQ(take(most, b), p);
  EXPECT_EQ(stats().fences, fences_of_a_named_batch()) << "none for the use";
  give(p);
}

/// The call at the end of a stream: required under `notify`, not under `query`.
TEST_P(StreamOrder, AReusedHandleInheritsNothing) {
  const stream_ref old = device_->create_stream();
  void* const p = take(most, old);
  device_->use(old, long_ns(), p, most);
  give(p);
  if (GetParam().stream_ids == stream_id_mode::notify) {
    ASSERT_TRUE(allocator_->stream_release(old).ok());
  }
  device_->destroy_stream(old);
  const stream_ref fresh = device_->create_stream();
  if (is_simulated()) {
    ASSERT_EQ(fresh, old);
  }
  void* const q = take(most, fresh);  // the referee checks it
  EXPECT_EQ(q, p);
  EXPECT_GE(stats().fences, 1U);
  give(q);
}

TEST_P(StreamOrder, AReleasedStreamsMemoryServesOthers) {
  const stream_ref gone = device_->create_stream();
  const stream_ref other = device_->create_stream();
  void* const p = take(most, gone);
  device_->use(gone, long_ns(), p, most);
  give(p);
  ASSERT_TRUE(allocator_->stream_release(gone).ok());
  device_->destroy_stream(gone);
  EXPECT_EQ(take(most, other), p);
  give(p);
}

TEST_P(StreamOrder, ABlockThatOutlivesItsStreamIsFreedAndServesOthers) {
  const stream_ref gone = device_->create_stream();
  const stream_ref other = device_->create_stream();
  void* const p = take(most, gone);
  void* const used = take(4096, other);
  ASSERT_TRUE(allocator_->record_use(used, gone).ok());
  device_->use(gone, long_ns(), p, most);
  device_->use(gone, long_ns(), used, 4096);
  ASSERT_TRUE(allocator_->stream_release(gone).ok());
  device_->destroy_stream(gone);
  give(p);
  give(used);
  EXPECT_EQ(take(most, other), p);
  EXPECT_EQ(stats().leaked_bytes, 0U);
  give(p);
}

TEST_P(StreamOrder, StreamsThatComeAndGoLeaveNothingBehind) {
  for (int i = 0; i < 200; ++i) {
    const stream_ref s = device_->create_stream();
    void* const p = take(std::size_t{1} << 20, s);
    device_->use(s, 1000, p, std::size_t{1} << 20);
    give(p);
    ASSERT_TRUE(allocator_->stream_release(s).ok());
    device_->destroy_stream(s);
  }
  give(take(std::size_t{1} << 20));
  if (is_simulated()) sim().advance_by(long_ns());
  static_cast<void>(allocator_->trim(0));
  EXPECT_LE(stats().streams, 2U);
  EXPECT_LE(stats().grown_segments, 220U);
  EXPECT_EQ(stats().live_bytes, 0U);
}

TEST_P(StreamOrder, ReleasingAStreamThatWasNeverSeenIsNothing) {
  const stream_ref s = device_->create_stream();
  EXPECT_TRUE(allocator_->stream_release(s).ok());
  EXPECT_EQ(stats().fences, 0U);
}

INSTANTIATE_TEST_SUITE_P(Every, StreamOrder, ::testing::ValuesIn(every_stream_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
