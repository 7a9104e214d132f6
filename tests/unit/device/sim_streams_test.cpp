// Virtual time, streams, fences, and the effect of waits on the clock.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

// Without call costs, only work and waits advance the clock.
class SimStreams : public ::testing::Test {
 protected:
  sim_device device{{.costs = {}}};
  stream_ref a = device.create_stream();
  stream_ref b = device.create_stream();
};

TEST_F(SimStreams, ClockNeverGoesBack) {
  EXPECT_EQ(device.now_ns(), 0U);
  device.advance_by(100);
  device.advance_to(50);
  EXPECT_EQ(device.now_ns(), 100U);
  device.advance_to(150);
  EXPECT_EQ(device.now_ns(), 150U);
  EXPECT_EQ(device.in_calls_ns(), 0U);
  device.advance_by(std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(device.now_ns(), std::numeric_limits<std::uint64_t>::max());
}

TEST_F(SimStreams, WorkIsDoneAfterItsLag) {
  device.advance_to(1'000);
  device.enqueue(a, 500);
  const fence f = *device.record(a);
  EXPECT_FALSE(*device.query(f));
  device.advance_to(1'499);
  EXPECT_FALSE(*device.query(f));
  device.advance_to(1'500);
  EXPECT_TRUE(*device.query(f));
}

TEST_F(SimStreams, WorkIsNotDoneBeforeEarlierWorkOfItsStream) {
  device.enqueue(a, 1'000);
  device.advance_to(10);
  device.enqueue(a, 5);
  ASSERT_TRUE(device.wait_host(*device.record(a)));
  EXPECT_EQ(device.now_ns(), 1'000U);
}

TEST_F(SimStreams, FenceCoversOnlyEarlierWork) {
  device.enqueue(a, 100);
  const fence f = *device.record(a);
  device.enqueue(a, 1'000);
  ASSERT_TRUE(device.wait_host(f));
  EXPECT_EQ(device.now_ns(), 100U);
}

TEST_F(SimStreams, AFenceTellsWhenItsWorkIsDone) {
  device.advance_to(1'000);
  device.enqueue(a, 500);
  const fence f = *device.record(a);
  EXPECT_EQ(*device.done_ns(f), 1'500U);
  EXPECT_EQ(device.now_ns(), 1'000U) << "asking waits for nothing";
  ASSERT_TRUE(device.wait_host(f));
  EXPECT_EQ(*device.done_ns(f), 1'500U);
  device.drop(f);
  EXPECT_EQ(device.done_ns(f).code(), errc::device_error);
}

TEST_F(SimStreams, FenceOnAnIdleStreamIsDone) { EXPECT_TRUE(*device.query(*device.record(a))); }

TEST_F(SimStreams, WaitHostCountsAsTimeInCalls) {
  device.enqueue(a, 700);
  ASSERT_TRUE(device.wait_host(*device.record(a)));
  EXPECT_EQ(device.in_calls_ns(), 700U);
}

TEST_F(SimStreams, WaitStreamDelaysTheStreamAndNotTheHost) {
  device.enqueue(a, 1'000);
  ASSERT_TRUE(device.wait_stream(b, *device.record(a)));
  EXPECT_EQ(device.now_ns(), 0U);
  device.enqueue(b, 10);
  ASSERT_TRUE(device.wait_host(*device.record(b)));
  EXPECT_EQ(device.now_ns(), 1'000U);
}

TEST_F(SimStreams, ContextFenceIsBehindAllStreams) {
  device.enqueue(a, 100);
  device.enqueue(b, 300);
  device.enqueue({}, 200);
  const fence f = *device.record_context();
  device.enqueue(b, 900);
  ASSERT_TRUE(device.wait_host(f));
  EXPECT_EQ(device.now_ns(), 300U);
}

TEST_F(SimStreams, ContextFenceIsBehindDestroyedStreams) {
  device.enqueue(b, 300);
  ASSERT_TRUE(device.destroy_stream(b));
  ASSERT_TRUE(device.wait_host(*device.record_context()));
  EXPECT_EQ(device.now_ns(), 300U);
}

TEST_F(SimStreams, SynchronizeWaitsForAll) {
  device.enqueue(a, 100);
  device.enqueue(b, 300);
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(device.now_ns(), 300U);
  EXPECT_EQ(device.in_calls_ns(), 300U);
}

TEST_F(SimStreams, FreeWaitsForAll) {
  const address segment = *device.alloc(std::uint64_t{2} << 20);
  device.enqueue(a, 400);
  ASSERT_TRUE(device.free(segment));
  EXPECT_EQ(device.now_ns(), 400U);
  const address pinned = *device.alloc_host(1);
  device.enqueue(a, 400);
  ASSERT_TRUE(device.free_host(pinned));
  EXPECT_EQ(device.now_ns(), 800U);
}

TEST_F(SimStreams, FreeThatIsRefusedDoesNotWait) {
  device.enqueue(a, 400);
  EXPECT_FALSE(device.free(1));
  EXPECT_EQ(device.now_ns(), 0U);
}

TEST_F(SimStreams, HandlesAreReusedIdsAreNot) {
  EXPECT_EQ(*device.stream_id({}), 1U);
  EXPECT_EQ(*device.stream_id(a), 2U);
  EXPECT_EQ(*device.stream_id(b), 3U);
  ASSERT_TRUE(device.destroy_stream(a));
  const stream_ref c = device.create_stream();
  EXPECT_EQ(c, a);
  EXPECT_EQ(*device.stream_id(c), 4U);
}

TEST_F(SimStreams, NewStreamOnAnOldHandleStartsIdle) {
  device.enqueue(a, 1'000);
  ASSERT_TRUE(device.destroy_stream(a));
  const stream_ref c = device.create_stream();
  ASSERT_EQ(c, a);
  EXPECT_TRUE(*device.query(*device.record(c)));
}

TEST_F(SimStreams, CreatingAndDestroyingForeverKeepsWorking) {
  for (int i = 0; i < 1'000; ++i) {
    const stream_ref s = device.create_stream();
    device.enqueue(s, 10);
    ASSERT_TRUE(device.wait_host(*device.record(s)));
    ASSERT_TRUE(device.destroy_stream(s));
  }
  EXPECT_EQ(device.now_ns(), 10'000U);
}

TEST_F(SimStreams, UnknownHandlesAreErrors) {
  const fence f = *device.record(a);
  ASSERT_TRUE(device.destroy_stream(b));
  int other = 0;
  for (const stream_ref s : {b, stream_ref{&other}, stream_ref{reinterpret_cast<void*>(std::uintptr_t{1})}}) {
    EXPECT_EQ(device.record(s).code(), errc::device_error);
    EXPECT_EQ(device.wait_stream(s, f).code(), errc::device_error);
    EXPECT_EQ(device.stream_id(s).code(), errc::device_error);
    EXPECT_EQ(device.destroy_stream(s).code(), errc::device_error);
    EXPECT_EQ(device.begin_capture(s).code(), errc::device_error);
    EXPECT_EQ(device.end_capture(s).code(), errc::device_error);
    device.enqueue(s, 1'000'000);
  }
  EXPECT_NE(device.record(b).why().message().find("is not a stream of this device"), std::string::npos);
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(device.now_ns(), 0U);  // nothing was enqueued
}

TEST_F(SimStreams, DefaultStreamCannotBeDestroyed) {
  EXPECT_EQ(device.destroy_stream({}).code(), errc::invalid_argument);
  EXPECT_TRUE(device.record({}));
}

TEST_F(SimStreams, DroppedAndMadeUpFencesAreErrors) {
  const fence dropped = *device.record(a);
  device.drop(dropped);
  device.drop(dropped);  // nothing
  device.drop(fence{});
  const fence next = *device.record(a);
  EXPECT_NE(next, dropped);
  for (const fence f : {dropped, fence{}, fence{12345}, fence{std::numeric_limits<std::uint64_t>::max()}}) {
    EXPECT_EQ(device.query(f).code(), errc::device_error) << f.id;
    EXPECT_EQ(device.wait_host(f).code(), errc::device_error) << f.id;
    EXPECT_EQ(device.wait_stream(a, f).code(), errc::device_error) << f.id;
  }
  EXPECT_TRUE(*device.query(next));
}

TEST_F(SimStreams, FenceOutlivesItsStream) {
  device.enqueue(a, 100);
  const fence f = *device.record(a);
  ASSERT_TRUE(device.destroy_stream(a));
  EXPECT_FALSE(*device.query(f));
  ASSERT_TRUE(device.wait_host(f));
  EXPECT_EQ(device.now_ns(), 100U);
}

}  // namespace
}  // namespace gpumem
