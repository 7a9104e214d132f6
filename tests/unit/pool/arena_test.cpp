// Requests and frees under the lock, with streams, captures and regions.
#include "arena.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "arena_state.hpp"
#include "cacheless_pool.hpp"
#include "log.hpp"
#include "segment_each.hpp"

namespace gpumem {
namespace {

using testing::HasSubstr;

struct small_arena {
  sim_device device;
  cacheless_pool tested;
  stream_ref one = device.create_stream();
  stream_ref two = device.create_stream();
  explicit small_arena(std::unique_ptr<policy> p = std::make_unique<segment_each>())
      : tested{device, config(), std::move(p)} {}
  static pool_config config() {
    pool_config waits_on_device;
    waits_on_device.reuse = stream_reuse::device;
    return waits_on_device;
  }
  ~small_arena() { EXPECT_TRUE(tested.check().ok()) << tested.check().message(); }
  small_arena(const small_arena&) = delete;
  small_arena& operator=(const small_arena&) = delete;
};

TEST(arena, what_a_stream_freed_serves_it_again_at_once) {
  small_arena x;
  const address a = x.tested.take(mib, x.one);
  ASSERT_NE(a, 0U);
  EXPECT_TRUE(x.tested.is_live(a));
  EXPECT_FALSE(x.tested.is_mapped(a));
  x.tested.give(a);
  EXPECT_FALSE(x.tested.is_live(a));
  EXPECT_EQ(x.tested.take(mib, x.one), a);
  const statistics s = x.tested.stats();
  EXPECT_EQ(s.live_bytes, mib);
  EXPECT_EQ(s.reserved_bytes, 2 * mib);
  EXPECT_EQ(s.segments, 1U);
  EXPECT_EQ(s.fences, 0U);
  EXPECT_GT(s.metadata_bytes, 0U);
}

TEST(arena, opens_once_with_what_the_policy_takes_ahead_of_demand) {
  auto p = std::make_unique<segment_each>();
  p->at_first = 8 * mib;
  small_arena x{std::move(p)};
  const auto open = [&] {
    return x.tested.locked([](arena& in, arena_lock& lock) GPUMEM_UNDER_LOCK { return in.open(lock); });
  };
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(x.device.used_bytes(), 8 * mib);
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(x.device.used_bytes(), 8 * mib);
}

TEST(arena, a_free_on_another_stream_belongs_to_that_stream) {
  small_arena x;
  const address a = x.tested.take(2 * mib, x.one);
  ASSERT_TRUE(x.tested.release_block(a, {.stream = x.two}).ok());
  EXPECT_EQ(x.tested.take(2 * mib, x.two), a);
}

TEST(arena, a_block_that_another_stream_uses_waits_for_that_use) {
  small_arena x;
  const address a = x.tested.take(2 * mib, x.one);
  ASSERT_TRUE(x.tested.record_use(a, x.one).ok()) << "the stream's own use is none";
  ASSERT_TRUE(x.tested.record_use(a, x.two).ok());
  x.device.enqueue(x.two, 1'000'000);
  x.tested.give(a);
  EXPECT_EQ(x.tested.stats().fenced_bytes, 2 * mib);
  EXPECT_EQ(x.tested.stats().largest_free_bytes, 2 * mib);
  EXPECT_EQ(x.tested.trim(0).pending_bytes, 2 * mib);
  x.device.advance_by(2'000'000);
  EXPECT_EQ(x.tested.trim(UINT64_MAX).returned_bytes, 2 * mib);
}

TEST(arena, a_request_of_a_mebibyte_frees_what_other_streams_have_finished_with) {
  small_arena x;
  const address a = x.tested.take(2 * mib, x.one);
  const address other = x.tested.take(4 * mib, x.one);
  ASSERT_TRUE(x.tested.record_use(a, x.two).ok());
  x.device.enqueue(x.two, 1'000'000);
  x.tested.give(a);
  x.tested.give(other);
  EXPECT_EQ(x.tested.take(mib, x.one), other);
  EXPECT_EQ(x.tested.stats().fenced_bytes, 2 * mib) << "the work is not done";
  x.device.advance_by(2'000'000);
  EXPECT_NE(x.tested.take(mib - 512, x.one), 0U);
  EXPECT_EQ(x.tested.stats().fenced_bytes, 2 * mib) << "smaller requests ask for nothing";
  EXPECT_NE(x.tested.take(mib, x.one), 0U);
  EXPECT_EQ(x.tested.stats().fenced_bytes, 0U);
  EXPECT_EQ(x.device.used_bytes(), 6 * mib);
}

TEST(arena, a_request_frees_blocks_behind_one_that_still_waits) {
  small_arena x;
  const stream_ref slow = x.device.create_stream();
  x.device.enqueue(slow, 1'000'000'000);
  const std::vector<address> used{x.tested.take(2 * mib, x.one), x.tested.take(2 * mib, x.one)};
  ASSERT_TRUE(x.tested.record_use(used[0], slow).ok());
  ASSERT_TRUE(x.tested.record_use(used[1], x.two).ok());
  for (const address each : used) x.tested.give(each);
  EXPECT_EQ(x.tested.stats().fenced_bytes, 4 * mib);
  x.device.advance_by(2'000'000);
  EXPECT_NE(x.tested.take(mib, x.one), 0U);
  EXPECT_EQ(x.tested.stats().fenced_bytes, 2 * mib);
}

TEST(arena, a_stream_that_ends_leaves_its_memory_to_others) {
  small_arena x;
  const address a = x.tested.take(2 * mib, x.one);
  x.tested.give(a);
  EXPECT_TRUE((*x.tested).streams().stream_release(*x.tested.key_of(x.one)).ok());
  EXPECT_TRUE((*x.tested).streams().stream_release(12'345).ok()) << "one that was never seen";
  EXPECT_EQ(x.tested.take(2 * mib, x.two), a);
}

TEST(arena, what_a_capture_allocates_is_its_graphs_until_that_is_gone) {
  small_arena x;
  const address before = x.tested.take(2 * mib, x.one);
  x.tested.give(before);
  const std::uint64_t key = *x.tested.key_of(x.one);
  result<pool_capture> capture = (*x.tested).streams().capture_begin(x.one, key, capture_effect::announced);
  ASSERT_TRUE(capture.ok());
  EXPECT_EQ((*x.tested).streams().capture_begin(x.one, key, capture_effect::announced).code(), errc::invalid_argument);
  ASSERT_TRUE(x.device.begin_capture(x.one).ok());
  const address inside = x.tested.take(2 * mib, x.one);
  EXPECT_NE(inside, before) << "a capture waits for nothing, and its own stream's memory is not the graph's";
  EXPECT_EQ((*x.tested).streams().stream_release(key).code(), errc::invalid_argument);
  x.tested.give(inside);
  EXPECT_EQ(x.tested.take(2 * mib, x.one), inside) << "freed within the capture";
  x.tested.give(inside);
  ASSERT_TRUE(x.device.end_capture(x.one).ok());
  const std::uint64_t graph = capture->end();
  EXPECT_EQ(capture->end(), 0U) << "it has ended";
  EXPECT_NE(x.tested.take(2 * mib, x.one), inside) << "the graph may run again";
  EXPECT_TRUE((*x.tested).streams().graph_release(graph).ok());
  EXPECT_EQ(x.tested.take(2 * mib, x.one), inside);
}

TEST(arena, a_capture_that_nobody_ends_ends_with_its_scope_and_leaves_no_graph) {
  small_arena x;
  const std::uint64_t key = *x.tested.key_of(x.one);
  address inside = 0;
  {
    const result<pool_capture> capture = (*x.tested).streams().capture_begin(x.one, key, capture_effect::announced);
    ASSERT_TRUE(capture.ok());
    const pool_capture elsewhere = (*x.tested).streams().capture_elsewhere(capture_effect::foreign);
    inside = x.tested.take(2 * mib, x.one);
    x.tested.give(inside);
    EXPECT_FALSE(x.tested.parts().context_frees.record());
  }
  EXPECT_EQ(x.tested.parts().state.streams.captures().local(), 0U);
  EXPECT_EQ(x.tested.take(2 * mib, x.two), inside) << "its graph was released";
  EXPECT_TRUE((*x.tested).streams().stream_release(key).ok());
}

TEST(arena, a_region_places_its_blocks_where_it_is_told) {
  small_arena x;
  request r{.bytes = mib, .stream = x.one};
  const auto ask = [&](std::uint64_t region, address place) {
    address at = 0;
    r.region = region;
    r.place = place;
    const status done = x.tested.allocate(r, mib, &at, nullptr);
    return std::pair{at, done};
  };
  EXPECT_THAT(ask(99, 0).second.message(), HasSubstr("region 99 of pool 0 is not open"));
  const std::uint64_t region = (*x.tested).streams().open_region(x.one, *x.tested.key_of(x.one));
  const address a = ask(region, 0).first;
  ASSERT_NE(a, 0U);
  EXPECT_EQ(ask(region, a).second.code(), errc::unsupported);
  EXPECT_THAT(ask(region, a).second.message(), HasSubstr("region " + std::to_string(region)));
  x.tested.give(a);
  EXPECT_EQ(ask(region, a).first, a);
  x.tested.give(a);
  r.stream = x.two;
  EXPECT_EQ(ask(region, 0).second.code(), errc::invalid_argument) << "its memory is in order on its own stream alone";
  EXPECT_THAT(ask(region, a).second.message(), HasSubstr("for which it was opened"));
}

TEST(arena, while_fences_are_forbidden_none_is_recorded) {
  small_arena x;
  const address a = x.tested.take(2 * mib, x.one);
  x.tested.give(a);
  pool_capture here = (*x.tested).streams().capture_elsewhere(capture_effect::announced);
  pool_capture abroad = (*x.tested).streams().capture_elsewhere(capture_effect::foreign);
  EXPECT_NE(x.tested.take(2 * mib, x.two), a);
  EXPECT_EQ(x.tested.stats().fences, 0U);
  EXPECT_GT(x.tested.trim(UINT64_MAX).pending_bytes, 0U);
  EXPECT_EQ(here.end(), 0U) << "no graph of this pool";
  EXPECT_EQ(abroad.end(), 0U);
  EXPECT_EQ(x.tested.take(2 * mib, x.two), a);
  EXPECT_EQ(x.tested.stats().fences, 1U);
}

TEST(arena, a_batch_behind_all_work_is_free_when_its_fence_is_done_whatever_comes_later) {
  small_arena x;
  const stream_ref all = x.device.create_stream();
  ASSERT_TRUE((*x.tested).streams().stand_for_all_work(all).ok());
  const address a = x.tested.take(2 * mib, x.one);
  const address b = x.tested.take(2 * mib, x.one);
  x.device.enqueue(x.one, 1'000'000);
  context_order& behind = x.tested.parts().context_frees;
  const std::optional<fence> f = behind.record();
  ASSERT_TRUE(f);
  const auto back = [&](address at, fence after) {
    x.tested.locked([&](arena& in, arena_lock&) GPUMEM_UNDER_LOCK {
      const block_index i = in.state.blocks.containing(at);
      in.state.caches.pointers().erase(in.state.caches.pointers().find(at).index);  // as a cache does
      in.state.counts.requested_bytes -= 2 * mib;
      in.free_behind_fence({&i, 1}, after);
    });
  };
  back(a, *f);
  back(b, {});
  x.device.advance_by(2'000'000);
  x.device.enqueue(x.one, 1'000'000'000);
  EXPECT_EQ(x.tested.take(2 * mib, x.two), a);
  EXPECT_EQ(x.tested.stats().device_waits, 0U);
  EXPECT_EQ(x.tested.take(2 * mib, x.two), b);
  EXPECT_EQ(x.tested.stats().device_waits, 1U) << "it had no fence yet";
  EXPECT_TRUE(x.tested.locked([&](arena&, arena_lock& lock) GPUMEM_UNDER_LOCK { return behind.cover(lock); }));
  const pool_capture capture = (*x.tested).streams().capture_elsewhere(capture_effect::announced);
  EXPECT_FALSE(behind.record()) << "something captures";
}

TEST(arena, says_of_every_block_what_it_is) {
  small_arena x;
  const address live = x.tested.take(mib, x.one);
  const address cached = x.tested.take(2 * mib, x.one);
  const address fenced = x.tested.take(4 * mib, x.one);
  ASSERT_TRUE(x.tested.record_use(fenced, x.two).ok());
  x.device.enqueue(x.two, 1'000'000'000);
  x.tested.give(cached);
  x.tested.give(fenced);
  const std::vector<segment_view> all = (*x.tested).segments();
  std::map<address, block_view::state> is;
  for (const segment_view& s : all) {
    for (const block_view& b : s.blocks) is[b.begin] = b.is;
  }
  EXPECT_EQ(is.at(live), block_view::state::live);
  EXPECT_EQ(is.at(cached), block_view::state::cached);
  EXPECT_EQ(is.at(fenced), block_view::state::fenced);
  EXPECT_EQ(is.at(live + mib), block_view::state::idle) << "what was left over";
}

TEST(arena, a_report_says_what_the_device_and_the_pool_have) {
  sim_device device;
  pool_config config;
  config.reuse = stream_reuse::device;
  config.limit_bytes = mib;
  cacheless_pool tested{device, config, std::make_unique<segment_each>()};
  oom_slot report;
  address at = 0;
  EXPECT_EQ(tested.allocate({.bytes = 4 * mib}, 4 * mib, &at, &report).code(), errc::out_of_memory);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->cause, oom_cause::limit);
  EXPECT_EQ(report->rounded_bytes, 4 * mib);
  EXPECT_EQ(report->device_total_bytes, device.info().total_bytes);
  EXPECT_EQ(report->pool, "0");
}

TEST(arena, a_policy_that_throws_fails_the_request_and_nothing_else) {
  struct throws final : policy {
    bool now = true;
    segment_request grow(const pool_view&, std::uint64_t need) override {
      if (now) throw std::runtime_error{"no opinion"};
      return {.bytes = need, .least_bytes = need};
    }
  };
  auto p = std::make_unique<throws>();
  throws* const decides = p.get();
  small_arena x{std::move(p)};
  EXPECT_THROW(static_cast<void>(x.tested.take(mib, x.one)), thrown_status);
  decides->now = false;
  EXPECT_NE(x.tested.take(mib, x.one), 0U);
}

TEST(arena, a_segment_that_the_driver_does_not_take_back_is_leaked_and_said_to_be) {
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  {
    small_arena x;
    x.tested.give(x.tested.take(2 * mib, x.one));
    x.device.advance_by(1);
    x.device.fail_nth(device_call::free, 1, errc::device_error);
    EXPECT_EQ(x.tested.trim(UINT64_MAX).returned_bytes, 0U);
    EXPECT_EQ(x.tested.stats().leaked_bytes, 2 * mib);
    EXPECT_NE(x.tested.take(4 * mib, x.one), 0U);
    x.device.fail_nth(device_call::free, 1, errc::device_error);
  }
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr("leaked, the driver did not take a segment back"));
  EXPECT_THAT(lines[1], HasSubstr("stays with the driver"));
}

// A request that would otherwise be refused may record events on the whole context. While it has released the lock,
// other threads may not.
TEST(arena, a_right_of_the_thread_with_the_lock_ends_while_it_has_given_the_lock_up) {
  small_arena x;
  arena_mutex& mutex = x.tested.parts().state.mutex;
  unsigned& rights = x.tested.parts().state.streams.captures().context_event_permits();
  arena_lock lock{mutex};
  rights = 1;
  {
    const unlocked_section unlocked{lock};
    std::thread{[&] {
      arena_lock theirs{mutex};
      EXPECT_EQ(rights, 0U);
      mutex.begin_generation();
    }}.join();
  }
  EXPECT_EQ(rights, 1U);
  const std::uint64_t seen = mutex.generation();
  std::thread other{[&] {
    const arena_lock theirs{mutex};
    EXPECT_EQ(rights, 0U);
    mutex.begin_generation();
  }};
  EXPECT_TRUE(lock.wait_for_generation(seen, std::nullopt));
  EXPECT_EQ(rights, 1U);
  other.join();
  rights = 0;
}

}  // namespace
}  // namespace gpumem
