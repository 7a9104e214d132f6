#include "device_waits.hpp"

#include "ordered_heap.hpp"

namespace gpumem {
namespace {

/// One stream that frees memory, and one that requests it.
struct two_streams : ordered_heap {
  stream_ref first = device.create_stream();
  owner_id from = slot(first);
  owner_id to = slot(device.create_stream());
  device_waits waits{streams, to};
  [[nodiscard]] bool behind() { return waits.behind(from); }
};

TEST(device_waits, are_noted_once_and_asked_for_again_when_more_was_freed) {
  two_streams t;
  t.free_on(t.first);
  EXPECT_FALSE(t.behind());
  EXPECT_FALSE(t.behind());
  EXPECT_TRUE(t.waits.missing());
  EXPECT_EQ(t.make(t.waits), 1U);
  EXPECT_FALSE(t.waits.missing());
  EXPECT_TRUE(t.behind());
  t.free_on(t.first);
  EXPECT_TRUE(t.waits.behind(t.from, 1)) << "what was freed before";
  EXPECT_FALSE(t.behind());
  EXPECT_EQ(t.make(t.waits), 1U);
  EXPECT_TRUE(t.behind());
}

TEST(device_waits, outlive_the_request_for_which_they_were_made) {
  two_streams t;
  t.free_on(t.first);
  EXPECT_FALSE(t.behind());
  EXPECT_EQ(t.make(t.waits), 1U);
  device_waits next{t.streams, t.to};
  EXPECT_TRUE(next.behind(t.from));
  EXPECT_FALSE(next.missing());
}

// 2^32 fences of one slot take two hours.
TEST(device_waits, are_needed_for_each_free_beyond_32_bits_of_epochs) {
  two_streams t;
  t.streams[t.from].epoch = 0xffff'fffe;
  for (int k = 0; k < 4; ++k) {
    device_waits waits{t.streams, t.to};
    t.free_on(t.first);
    EXPECT_FALSE(waits.behind(t.from)) << "free " << k << " of epoch " << t.streams[t.from].epoch;
    EXPECT_EQ(t.make(waits), 1U);
    EXPECT_TRUE(waits.behind(t.from));
  }
}

TEST(device_waits, for_a_stream_that_ended_are_none_for_the_next_one_with_its_slot) {
  two_streams t;
  for (int k = 0; k < 3; ++k) {  // three epochs
    device_waits waits{t.streams, t.to};
    t.free_on(t.first);
    EXPECT_FALSE(waits.behind(t.from));
    EXPECT_EQ(t.make(waits), 1U);
  }
  t.let_time_pass();
  t.streams.end_stream(t.from);
  ASSERT_FALSE(t.streams[t.from].in_use);
  const stream_ref next = t.device.create_stream();
  t.free_on(next);
  ASSERT_EQ(t.slot(next), t.from);
  EXPECT_FALSE(t.behind());
}

TEST(device_waits, keep_fence_and_slot_until_their_end) {
  two_streams t;
  t.free_on(t.first);
  {
    device_waits waits{t.streams, t.to};
    EXPECT_FALSE(waits.behind(t.from, 1));
    t.record_fences();
    EXPECT_EQ(t.streams[t.from].references, 1U) << "the lock is given up while they are made";
    EXPECT_EQ(t.streams.fences()[0].refcount, 2U);
  }
  EXPECT_EQ(t.streams[t.from].references, 0U);
  EXPECT_EQ(t.streams.fences()[0].refcount, 1U);
}

TEST(device_waits, are_not_needed_behind_what_is_done) {
  two_streams t;
  t.free_on(t.first);
  const result<fence_index> f = t.streams.cover(t.from);
  ASSERT_TRUE(f.ok());
  t.record_fences();
  EXPECT_FALSE(t.waits.behind_fence(*f));
  t.device.advance_by(2'000'000);
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::done);
  EXPECT_TRUE(t.behind());
  EXPECT_TRUE(t.waits.behind_fence(*f));
  t.streams.fences().unref(*f);
}

TEST(device_waits, that_were_refused_are_not_tried_again_by_the_same_request) {
  two_streams t;
  t.free_on(t.first);
  const result<fence_index> f = t.streams.cover(t.from);
  ASSERT_TRUE(f.ok());
  EXPECT_FALSE(t.behind());
  EXPECT_FALSE(t.waits.behind_fence(*f));
  t.device.fail_nth(device_call::wait_stream, 1);
  t.device.fail_nth(device_call::wait_stream, 2);
  EXPECT_EQ(t.make(t.waits), 0U);
  EXPECT_FALSE(t.behind());
  EXPECT_FALSE(t.waits.behind_fence(*f));
  EXPECT_FALSE(t.waits.missing());
  device_waits next{t.streams, t.to};
  EXPECT_FALSE(next.behind(t.from, 1));
  EXPECT_EQ(t.make(next), 1U) << "the fence is there still";
  t.streams.fences().unref(*f);
}

TEST(device_waits, order_nobody_behind_a_fence_that_failed_or_cannot_be_recorded) {
  two_streams t;
  t.free_on(t.first);
  t.device.fail_nth(device_call::record, 1);
  EXPECT_FALSE(t.behind());
  EXPECT_EQ(t.make(t.waits), 0U);
  EXPECT_FALSE(t.waits.missing());
  t.streams.poll();
  const result<fence_index> f = t.streams.cover(t.from);
  ASSERT_TRUE(f.ok());
  t.record_fences();
  t.device.fail_nth(device_call::query, 1);
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::failed);
  EXPECT_FALSE(t.behind());
  EXPECT_FALSE(t.waits.behind_fence(*f));
  EXPECT_FALSE(t.waits.missing());
  t.streams.fences().unref(*f);
}

TEST(device_waits, end_after_some_rounds_though_others_keep_freeing) {
  two_streams t;
  for (unsigned round = 0; round < device_waits::most_rounds; ++round) {
    t.free_on(t.first);
    EXPECT_FALSE(t.behind());
    EXPECT_EQ(t.make(t.waits), 1U);
  }
  t.free_on(t.first);
  EXPECT_FALSE(t.behind());
  EXPECT_FALSE(t.waits.missing());
}

}  // namespace
}  // namespace gpumem
