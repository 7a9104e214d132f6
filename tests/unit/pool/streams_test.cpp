#include "streams.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

struct table {
  sim_device device;
  heap blocks{1};
  stream_table streams;
  explicit table(stream_id_mode ids) : streams{device, blocks, ids} { blocks.add_segment(0x1000'0000, mib, 0); }

  owner_id slot(stream_ref s) { return streams.slot_of(s, *streams.key_of(s)); }
  /// Allocates and frees 512 B on the stream, whose work lags by 1 ms.
  void free_on(stream_ref s) {
    const owner_id o = slot(s);
    device.enqueue(s, 1'000'000);
    const block_index i = blocks.carve(blocks.best_fit(0, idle_owner, true, 512, 512), 512, 512);
    blocks.release(i, o, streams[o].epoch, false);
    streams[o].dirty = true;
  }
};

TEST(streams, a_handle_that_is_used_again_is_another_stream) {
  for (const stream_id_mode ids : {stream_id_mode::query, stream_id_mode::notify}) {
    table t{ids};
    const stream_ref first = t.device.create_stream();
    t.free_on(first);
    const owner_id before = t.slot(first);
    t.streams.stream_gone(before);
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
  static_cast<void>(q.streams.key_of(q.device.create_stream()));
  static_cast<void>(n.streams.key_of(n.device.create_stream()));
  static_cast<void>(q.streams.key_of({}));
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
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(t.streams.fences_recorded(), 1U);
  t.streams.poll();
  EXPECT_GT(t.blocks.totals().cached_bytes, 0U) << "the work is not done";
  t.device.advance_by(2'000'000);
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().cached_bytes, 0U);
  t.streams.let_go(*first);
  t.streams.let_go(*again);
}

TEST(streams, a_handle_that_may_be_dead_is_never_recorded_on) {
  const auto calls = [](const table& t, device_call c) { return t.device.calls()[static_cast<std::size_t>(c)]; };
  table q{stream_id_mode::query};
  const stream_ref s = q.device.create_stream();
  q.free_on(s);
  ASSERT_TRUE(q.device.destroy_stream(s).ok());
  ASSERT_TRUE(q.streams.cover(1).ok());
  EXPECT_EQ(calls(q, device_call::record), 0U);
  EXPECT_EQ(calls(q, device_call::record_context), 1U);

  table n{stream_id_mode::notify};
  const stream_ref r = n.device.create_stream();
  n.free_on(r);
  n.streams.stream_gone(n.slot(r));
  EXPECT_EQ(calls(n, device_call::record), 0U);
  EXPECT_EQ(calls(n, device_call::record_context), 1U);
}

TEST(streams, a_stream_that_left_nothing_behind_is_forgotten) {
  table t{stream_id_mode::notify};
  const stream_ref s = t.device.create_stream();
  t.free_on(s);
  t.streams.stream_gone(t.slot(s));
  EXPECT_EQ(t.streams.in_use(), 1U);
  t.device.advance_by(2'000'000);
  t.streams.poll();
  EXPECT_EQ(t.streams.in_use(), 0U);
  for (int i = 0; i < 1'000; ++i) {
    const stream_ref next = t.device.create_stream();
    t.free_on(next);
    t.streams.stream_gone(t.slot(next));
    ASSERT_TRUE(t.device.destroy_stream(next).ok());
    t.device.advance_by(2'000'000);
    t.streams.poll();
  }
  EXPECT_LE(t.streams.end(), 4U) << "slots are used again";
}

TEST(streams, ordering_behind_another_stream_waits_once_for_what_is_covered) {
  table t{stream_id_mode::notify};
  const stream_ref a = t.device.create_stream();
  const stream_ref b = t.device.create_stream();
  t.free_on(a);
  const owner_id from = t.slot(a);
  const owner_id to = t.slot(b);
  ASSERT_TRUE(t.streams.order_behind(to, from).ok());
  ASSERT_TRUE(t.streams.order_behind(to, from).ok());
  EXPECT_EQ(t.streams.device_waits(), 1U);
  t.free_on(a);
  ASSERT_TRUE(t.streams.order_behind(to, from).ok());
  EXPECT_EQ(t.streams.device_waits(), 2U);
}

TEST(streams, a_failed_fence_leaks_what_a_gone_stream_left_and_nothing_of_a_living_one) {
  table t{stream_id_mode::notify};
  const stream_ref living = t.device.create_stream();
  const stream_ref ended = t.device.create_stream();
  t.free_on(living);
  t.free_on(ended);
  const result<fence_index> f = t.streams.cover(t.slot(living));
  ASSERT_TRUE(f.ok());
  t.streams.stream_gone(t.slot(ended));
  t.device.fail_nth(device_call::query, 1);
  t.device.fail_nth(device_call::query, 2);
  t.streams.poll();
  t.streams.let_go(*f);
  EXPECT_EQ(t.blocks.totals().leaked_bytes, 512U);
  EXPECT_EQ(t.blocks.totals().cached_bytes, 512U);
  EXPECT_TRUE(t.streams[t.slot(living)].dirty) << "another fence may be tried";
}

TEST(streams, a_graph_keeps_its_blocks_until_it_is_released) {
  table t{stream_id_mode::notify};
  const stream_ref s = t.device.create_stream();
  const result<owner_id> g = t.streams.capture_begin(t.slot(s));
  ASSERT_TRUE(g.ok());
  const block_index i = t.blocks.carve(t.blocks.best_fit(0, *g, true, 512, 512), 512, 512);
  t.blocks.release(i, *g, t.streams[*g].epoch, false);
  t.streams[*g].dirty = true;
  const result<std::uint64_t> graph = t.streams.capture_end(t.slot(s));
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(t.streams.cover(*g).code(), errc::unsupported);
  EXPECT_EQ(t.streams.graph_gone(*graph + 1).code(), errc::invalid_argument);
  ASSERT_TRUE(t.streams.graph_gone(*graph).ok());
  EXPECT_EQ(t.streams.graph_gone(*graph).code(), errc::invalid_argument);
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().cached_bytes, 0U);
}

}  // namespace
}  // namespace gpumem
