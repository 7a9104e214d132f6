#include "stream_order.hpp"

#include <algorithm>
#include <ctime>

#include "ordered_heap.hpp"

namespace gpumem {
namespace {

using table = ordered_heap;

TEST(streams, a_handle_that_is_used_again_is_another_stream) {
  for (const stream_id_mode ids : {stream_id_mode::query, stream_id_mode::notify}) {
    table t{ids};
    const stream_ref first = t.device.create_stream();
    t.free_on(first);
    const owner_id before = t.slot(first);
    t.streams.end_stream(before);
    ASSERT_TRUE(t.device.destroy_stream(first).ok());
    const stream_ref second = t.device.create_stream();
    ASSERT_EQ(second, first) << "the simulated driver reuses handles";
    EXPECT_NE(t.slot(second), before);
  }
}

TEST(streams, query_asks_the_device_and_notify_does_not) {
  table q{stream_id_mode::query};
  table n{stream_id_mode::notify};
  const auto asked = [](const table& t) { return t.device.calls()[static_cast<std::size_t>(device_call::stream_id)]; };
  static_cast<void>(q.streams.keys().key_of(q.device.create_stream()));
  static_cast<void>(n.streams.keys().key_of(n.device.create_stream()));
  static_cast<void>(q.streams.keys().key_of({}));
  EXPECT_EQ(asked(q), 1U) << "the default stream never ends";
  EXPECT_EQ(asked(n), 0U);
}

TEST(streams, one_fence_covers_everything_freed_so_far) {
  table t{stream_id_mode::notify};
  const stream_ref s = t.device.create_stream();
  for (int i = 0; i < 10; ++i) t.free_on(s);
  const result<fence_index> first = t.streams.cover(t.slot(s));
  const result<fence_index> again = t.streams.cover(t.slot(s));
  ASSERT_TRUE(first.ok() && again.ok());
  t.record_fences();
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(t.streams.fences().count(), 1U);
  t.streams.poll();
  EXPECT_GT(t.blocks.totals().cached_bytes, 0U) << "the work is not done";
  t.device.advance_by(2'000'000);
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().cached_bytes, 0U);
  t.streams.fences().unref(*first);
  t.streams.fences().unref(*again);
}

TEST(streams, a_handle_that_may_be_dead_is_never_recorded_on) {
  const auto calls = [](const table& t, device_call c) { return t.device.calls()[static_cast<std::size_t>(c)]; };
  table q{stream_id_mode::query};
  const stream_ref s = q.device.create_stream();
  q.free_on(s);
  ASSERT_TRUE(q.device.destroy_stream(s).ok());
  ASSERT_TRUE(q.streams.cover(1).ok());
  q.record_fences();
  EXPECT_EQ(calls(q, device_call::record), 0U);
  EXPECT_EQ(calls(q, device_call::record_context), 1U);

  table n{stream_id_mode::notify};
  const stream_ref r = n.device.create_stream();
  n.free_on(r);
  n.streams.end_stream(n.slot(r));
  n.record_fences();
  EXPECT_EQ(calls(n, device_call::record), 0U);
  EXPECT_EQ(calls(n, device_call::record_context), 1U);
}

TEST(streams, a_stream_that_left_nothing_behind_is_forgotten) {
  table t{stream_id_mode::notify};
  const stream_ref s = t.device.create_stream();
  t.free_on(s);
  t.streams.end_stream(t.slot(s));
  EXPECT_EQ(t.streams.slots().in_use(), 1U);
  t.let_time_pass();
  EXPECT_EQ(t.streams.slots().in_use(), 0U);
  for (int i = 0; i < 1'000; ++i) {
    const stream_ref next = t.device.create_stream();
    t.free_on(next);
    t.streams.end_stream(t.slot(next));
    t.record_fences();
    ASSERT_TRUE(t.device.destroy_stream(next).ok());
    t.let_time_pass();
  }
  EXPECT_LE(t.streams.slots().end(), 4U) << "slots are used again";
}

// As under `query`, where the program does not announce the end of a stream.
TEST(streams, that_are_long_unused_are_forgotten_and_what_they_freed_has_one_owner) {
  table t{stream_id_mode::query};
  const stream_ref steady = t.device.create_stream();
  const stream_ref seldom = t.device.create_stream();
  const owner_id owner = t.slot(steady);
  const block_index live = t.take(owner);
  const std::uint64_t key = t.streams[t.slot(seldom)].key;
  t.free_on(seldom);
  for (int i = 0; i < 10'000; ++i) {
    const stream_ref next = t.device.create_stream();
    static_cast<void>(t.slot(next));
    if (i % 100 == 0) t.free_on(next);
    ASSERT_TRUE(t.device.destroy_stream(next).ok());
  }
  EXPECT_LE(t.streams.slots().in_use(), 200U);
  EXPECT_LE(t.streams.slots().end(), 200U);
  EXPECT_LE(t.streams.slots().metadata_bytes(), 200U * 512);
  EXPECT_EQ(t.streams.slots().find(*t.streams.keys().key_of(steady)), owner) << "a live block is its own";
  EXPECT_EQ(t.streams.slots().find(key), idle_owner);
  EXPECT_EQ(t.blocks.totals().cached_bytes, 101 * 512U);
  EXPECT_LE(t.blocks.free_blocks().owners().size(), 3U);
  for (const owner_id o : t.blocks.free_blocks().owners()) EXPECT_TRUE(t.streams[o].serves_others());
  const std::vector<owner_id> owners = t.blocks.free_blocks().owners();
  const context_events may_record{t.streams.captures()};
  for (const owner_id o : owners) EXPECT_TRUE(t.streams.fence_behind(o));
  t.record_fences();
  t.streams.poll();
  EXPECT_GT(t.blocks.totals().cached_bytes, 0U) << "their work is not done";
  t.let_time_pass();
  EXPECT_EQ(t.blocks.totals().cached_bytes, 0U);
  t.streams.free_block(live, owner);
}

TEST(streams, that_end_keep_their_slot_for_what_is_freed_on_them) {
  for (const stream_id_mode ids : {stream_id_mode::query, stream_id_mode::notify}) {
    table t{ids};
    const stream_ref s = t.device.create_stream();
    const owner_id o = t.slot(s);
    const owner_id other = t.slot(t.device.create_stream());
    const std::uint64_t key = t.streams[o].key;
    const block_index live = t.take(o);
    EXPECT_EQ(t.streams.owner_of_free(o, s, key), o);
    EXPECT_EQ(t.streams.owner_of_free(other, s, key), o);
    t.streams.end_stream(o);
    EXPECT_EQ(t.streams.owner_of_free(o, s, key), o) << "its handle is not asked";
    if (ids == stream_id_mode::query) {
      EXPECT_EQ(t.streams.owner_of_free(other, s, key), o);
    } else {
      const owner_id next = t.slot(s);
      EXPECT_EQ(t.streams.owner_of_free(o, s, key), next) << "a new stream has its handle";
    }
    EXPECT_LE(t.streams.slots().in_use(), 3U);
    t.streams.free_block(live, o);
  }
}

TEST(streams, a_failed_fence_leaks_what_a_gone_stream_left_and_nothing_of_a_living_one) {
  table t{stream_id_mode::notify};
  const stream_ref living = t.device.create_stream();
  const stream_ref ended = t.device.create_stream();
  t.free_on(living);
  t.free_on(ended);
  const result<fence_index> f = t.streams.cover(t.slot(living));
  ASSERT_TRUE(f.ok());
  t.streams.end_stream(t.slot(ended));
  t.record_fences();
  t.device.fail_nth(device_call::query, 1);
  t.device.fail_nth(device_call::query, 2);
  t.streams.poll();
  t.streams.fences().unref(*f);
  EXPECT_EQ(t.blocks.totals().leaked_bytes, 512U);
  EXPECT_EQ(t.blocks.totals().cached_bytes, 512U);
  EXPECT_TRUE(t.streams[t.slot(living)].dirty) << "another fence may be tried";
}

TEST(streams, no_fence_is_recorded_or_asked_while_a_stream_captures) {
  table t;
  const stream_ref a = t.device.create_stream();
  t.free_on(a);
  const owner_id o = t.slot(a);
  const result<fence_index> before = t.streams.cover(o);
  ASSERT_TRUE(before.ok());
  t.record_fences();
  ASSERT_TRUE(t.graphs.begin_capture(o).ok());
  EXPECT_EQ(t.graphs.begin_capture(o).code(), errc::invalid_argument) << "it captures already";
  t.streams.captures().begin(capture_effect::announced);
  EXPECT_EQ(t.streams.captures().local(), 1U);
  EXPECT_EQ(t.streams.reserve_fence(o).code(), errc::unsupported);
  t.device.advance_by(2'000'000);
  EXPECT_EQ(t.streams.ask(*before), tracked_fence::state::pending) << "even a query would spoil it";
  const std::uint64_t graph = t.graphs.end_capture(o);
  t.streams.captures().end(capture_effect::announced);
  EXPECT_EQ(t.streams.ask(*before), tracked_fence::state::done);
  t.streams.fences().unref(*before);
  ASSERT_TRUE(t.graphs.release(graph).ok());
}

// The capture's end is not announced: fences of living streams are still recorded, and only events on the context wait.
TEST(streams, a_noticed_capture_holds_up_events_on_the_context_only) {
  table t{stream_id_mode::notify};
  const owner_id capturing = t.slot(t.device.create_stream());
  const stream_ref living = t.device.create_stream();
  t.free_on(living);
  t.free_on({});
  const result<fence_index> before = t.streams.reserve_fence(capturing);
  ASSERT_TRUE(before.ok());
  t.record_fences();
  ASSERT_TRUE(t.graphs.begin_capture(capturing).ok());
  t.streams.captures().begin(capture_effect::noticed);
  EXPECT_EQ(t.streams.captures().local(), 1U);
  EXPECT_FALSE(t.streams.captures().pause_fences());
  EXPECT_EQ(t.streams.reserve_fence(t.slot({})).code(), errc::unsupported) << "the default stream waits for all others";
  EXPECT_EQ(t.streams.reserve_fence(capturing).code(), errc::unsupported);
  const result<fence_index> f = t.streams.cover(t.slot(living));
  ASSERT_TRUE(f.ok());
  t.record_fences();
  t.device.advance_by(2'000'000);
  EXPECT_TRUE(t.streams.may_wait_for(*f));
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::done);
  EXPECT_FALSE(t.streams.may_wait_for(*before)) << "it was recorded on the stream that captures";
  EXPECT_EQ(t.streams.ask(*before), tracked_fence::state::pending);
  static_cast<void>(t.graphs.end_capture(capturing));
  t.streams.captures().end(capture_effect::noticed);
  EXPECT_EQ(t.streams.ask(*before), tracked_fence::state::done);
  t.streams.fences().unref(*before);
  t.streams.fences().unref(*f);
}

TEST(streams, a_query_that_the_host_had_no_memory_for_is_asked_again) {
  table t;
  const owner_id a = t.slot(t.device.create_stream());
  const result<fence_index> f = t.streams.reserve_fence(a);
  ASSERT_TRUE(f.ok());
  t.record_fences();
  t.device.fail_nth(device_call::query, 1, errc::host_failure);
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::pending);
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::done);
  t.streams.fences().unref(*f);
}

TEST(streams, what_a_slot_frees_is_its_own_at_once_and_the_reference_ends) {
  table t;
  const stream_ref s = t.device.create_stream();
  const owner_id o = t.slot(s);
  EXPECT_EQ(t.streams.slots().find(*t.streams.keys().key_of(s)), o);
  EXPECT_EQ(t.streams.slots().find(12345), idle_owner);
  const block_index i = t.take(o);
  t.streams.free_block(i, o);
  EXPECT_EQ(t.streams[o].references, 0U);
  EXPECT_TRUE(t.streams[o].dirty);
  EXPECT_EQ(t.blocks.totals().cached_bytes, mib) << "with one stream, idle neighbours are its own";
  EXPECT_GT(t.streams.slots().metadata_bytes(), 0U);
}

// Records fences without a lock, like a pool.
TEST(streams, a_fence_that_is_recorded_later_covers_what_was_freed_before_it_was_asked_for) {
  ordered_heap t;
  const stream_ref s = t.device.create_stream();
  t.free_on(s);
  const owner_id o = t.slot(s);
  const result<fence_index> f = t.streams.cover(o);
  ASSERT_TRUE(f.ok());
  EXPECT_EQ(t.streams.fences().count(), 0U);
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::unrecorded);
  t.device.advance_by(2'000'000);
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().idle_bytes + 512, mib) << "nobody knows yet";
  const std::vector<unrecorded_fence> all = t.streams.fences().take_unrecorded();
  ASSERT_EQ(all.size(), 1U);
  t.free_on(s);  // is behind the next one
  t.streams.fences().recorded(all[0], *t.streams.record_on_device(all[0]));
  EXPECT_EQ(t.streams.fences().count(), 1U);
  EXPECT_TRUE(t.streams[o].dirty);
  t.let_time_pass();
  EXPECT_EQ(t.streams.ask(*f), tracked_fence::state::done);
  t.streams.fences().unref(*f);
}

TEST(streams, a_fence_that_could_not_be_made_is_made_again_even_of_a_gone_stream) {
  ordered_heap t;
  const stream_ref s = t.device.create_stream();
  t.free_on(s);
  const owner_id o = t.slot(s);
  t.streams.end_stream(o);
  const std::vector<unrecorded_fence> all = t.streams.fences().take_unrecorded();
  ASSERT_EQ(all.size(), 1U);
  t.streams.fences().recorded(all[0], std::nullopt);
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().leaked_bytes, 0U);
  const result<fence_index> again = t.streams.cover(o);
  ASSERT_TRUE(again.ok());
  t.streams.fences().unref(*again);
  t.let_time_pass();
  EXPECT_EQ(t.blocks.totals().idle_bytes, mib);
}

TEST(streams, a_fence_that_could_not_be_made_behind_a_pending_one_covers_nothing) {
  ordered_heap t;
  const stream_ref s = t.device.create_stream();
  t.free_on(s);
  const owner_id o = t.slot(s);
  const result<fence_index> pending = t.streams.cover(o);
  std::vector<unrecorded_fence> all = t.streams.fences().take_unrecorded();
  t.streams.fences().recorded(all[0], *t.streams.record_on_device(all[0]));
  t.free_on(s);
  const result<fence_index> unmade = t.streams.cover(o);
  all = t.streams.fences().take_unrecorded();
  ASSERT_EQ(all.size(), 1U);
  t.streams.fences().recorded(all[0], std::nullopt);
  const result<fence_index> again = t.streams.cover(o);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(t.streams.ask(*again), tracked_fence::state::unrecorded) << "another one stands for it";
  for (const fence_index f : {*pending, *unmade, *again}) t.streams.fences().unref(f);
  t.let_time_pass();
  EXPECT_EQ(t.blocks.totals().idle_bytes, mib);
}

TEST(streams, a_batch_behind_a_fence_is_idle_once_that_is_done) {
  table t;
  const stream_ref s = t.device.create_stream();
  t.device.enqueue(s, 1'000'000);
  const result<fence> behind = t.device.record_context();
  ASSERT_TRUE(behind.ok());
  const owner_id o = t.streams.begin_batch(s, *behind);
  t.streams.free_block(t.take(o), o);
  t.streams.end_batch(o);
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().cached_bytes, mib) << "the work is not done";
  t.let_time_pass();
  EXPECT_EQ(t.blocks.totals().idle_bytes, mib);
  EXPECT_FALSE(t.streams[o].in_use);
}

// Many frees of a preloaded process are pending behind one kernel.
TEST(streams, batches_that_are_done_cost_as_much_each_however_many_there_are) {
  const auto cost = [](int batches) {
    table t;
    t.blocks.add_segment(0x2000'0000, static_cast<std::uint64_t>(batches) * 512, 0);
    const stream_ref s = t.device.create_stream();
    static_cast<void>(t.slot(s));
    static_cast<void>(t.slot(t.device.create_stream()));
    for (int k = 0; k < batches; ++k) {
      const owner_id o = t.streams.begin_batch(s, *t.device.record_context());
      t.streams.free_block(t.take(o), o);
      t.streams.end_batch(o);
    }
    timespec begin{};
    timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    t.streams.poll();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    EXPECT_EQ(t.streams.slots().in_use(), 2U);
    return static_cast<double>(end.tv_sec - begin.tv_sec) + static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
  };
  const auto least = [&](int batches) { return std::min({cost(batches), cost(batches), cost(batches)}); };
  EXPECT_LT(least(32'000), 16 * 6 * least(2'000)) << "16 times as many, and 256 times the pairs of them";
}

TEST(streams, a_handle_names_the_latest_stream_that_had_it) {
  table t{stream_id_mode::query};
  const stream_ref first = t.device.create_stream();
  t.free_on(first);
  ASSERT_TRUE(t.device.destroy_stream(first).ok());
  const stream_ref second = t.device.create_stream();
  ASSERT_EQ(first, second);
  t.free_on(second);
  EXPECT_EQ(t.streams.slots().key_of_handle(second), *t.streams.keys().key_of(second));
  EXPECT_FALSE(t.streams.slots().key_of_handle(t.device.create_stream()).has_value()) << "never seen";
}

}  // namespace
}  // namespace gpumem
