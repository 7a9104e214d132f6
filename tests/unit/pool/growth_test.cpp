// How a pool takes memory, with policies made for these tests; tests/unit/policies tests the built-in ones.
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "bits.hpp"
#include "cacheless_pool.hpp"
#include "gpumem/sim_device.hpp"
#include "known_segments.hpp"

namespace gpumem {
namespace {

struct asks final : policy {
  segment_request at_first;
  segment_request later;
  asks(const segment_request& first_ask, const segment_request& later_ask) : at_first{first_ask}, later{later_ask} {}
  segment_request first(const pool_view&) override { return at_first; }
  segment_request grow(const pool_view&, std::uint64_t need) override {
    return {.bytes = std::max(later.bytes, need), .least_bytes = need};
  }
};

struct pool_of_one_policy {
  sim_device device;
  cacheless_pool tested;
  pool_of_one_policy(std::uint64_t limit, const segment_request& first, const segment_request& later, sim_config c = {})
      : device{c}, tested{device, config(limit, c), std::make_unique<asks>(first, later)} {}
  static pool_config config(std::uint64_t limit, const sim_config& c) {
    pool_config p;
    p.reuse = stream_reuse::device;
    p.name = "0";
    p.limit_bytes = limit;
    p.total_bytes = c.capacity_bytes;
    return p;
  }
  result<address> take(std::uint64_t bytes, std::size_t alignment = 512) {
    request r;
    r.bytes = bytes;
    r.alignment = alignment;
    address at = 0;
    if (status done = tested.allocate(r, round_up(bytes, 512), &at, nullptr); !done) return done;
    return at;
  }
};

TEST(growth, takes_what_the_policy_asks_ahead_of_demand_and_records_what_it_got) {
  pool_of_one_policy x{gib, {.bytes = 64 * mib, .least_bytes = 2 * mib}, {.bytes = 2 * mib}};
  EXPECT_EQ(x.device.used_bytes(), 0U) << "nothing before the first request";
  ASSERT_TRUE(x.take(512).ok());
  EXPECT_EQ(x.device.used_bytes(), 64 * mib);
  EXPECT_EQ(x.tested.stats().asked_at_start_bytes, 64 * mib);
  EXPECT_EQ(x.tested.stats().got_at_start_bytes, 64 * mib);
}

TEST(growth, observers_are_told_of_segments_that_came) {
  pool_of_one_policy x{gib, {.bytes = 64 * mib, .least_bytes = 2 * mib}, {.bytes = 2 * mib}};
  const auto observer = std::make_shared<known_segments>();
  std::vector<std::uint64_t> used;  // bytes of the device at each event
  observer->at_event = [&](const known_segments::event&) {
    used.push_back(x.device.used_bytes());
    EXPECT_NE(x.tested.stats().limit_bytes, 0U) << "asked without a deadlock";
  };
  (*x.tested).observe_segments(observer);
  const result<address> first = x.take(512);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(x.take(100 * mib).ok());
  EXPECT_EQ(used, (std::vector<std::uint64_t>{64 * mib, 164 * mib}));
  const std::vector<known_segments::event> events = observer->events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].extent.begin, *first);
  EXPECT_EQ(events[0].extent.bytes, 64 * mib);
  EXPECT_FALSE(events[0].extent.paged);
  x.device.fail_nth(device_call::alloc, 1);
  EXPECT_FALSE(x.take(100 * mib).ok());
  EXPECT_EQ(observer->events().size(), 2U) << "nothing came";
}

TEST(growth, shrinks_what_the_device_refuses_down_to_the_least_and_no_further) {
  sim_config c;
  c.capacity_bytes = gib;
  c.foreign_bytes = gib - 64 * mib;
  pool_of_one_policy x{gib, {}, {.bytes = 512 * mib}, c};
  ASSERT_TRUE(x.take(2 * mib).ok());
  const std::uint64_t got = x.device.used_bytes();
  EXPECT_GE(got, 48 * mib) << "nine tenths of the refused size at a time";
  EXPECT_LE(got, 64 * mib);
  const result<address> too_much = x.take(65 * mib);
  EXPECT_EQ(too_much.code(), errc::out_of_memory);
  EXPECT_EQ(x.device.used_bytes(), got);
  EXPECT_TRUE(x.tested.check().ok()) << x.tested.check().message();
}

// Under `poll` no stream waits for another one, but memory whose work is done only needs a query.
TEST(growth, memory_that_another_streams_work_is_done_with_is_taken_first) {
  sim_device device{{}};
  pool_config config = pool_of_one_policy::config(gib, {});
  config.reuse = stream_reuse::poll;
  cacheless_pool tested{device, config, std::make_unique<asks>(segment_request{}, segment_request{.bytes = 8 * mib})};
  const stream_ref one = device.create_stream();
  const stream_ref other = device.create_stream();
  const auto take = [&](stream_ref s) {
    request r;
    r.bytes = 8 * mib;
    r.stream = s;
    address at = 0;
    EXPECT_TRUE(tested.allocate(r, r.bytes, &at, nullptr).ok());
    return at;
  };
  const address first = take(one);
  device.enqueue_use(one, 1'000'000, first, 8 * mib);
  EXPECT_TRUE(tested.release_block(first, {}).ok());
  const address second = take(other);
  EXPECT_NE(second, first) << "which is in use for a millisecond more";
  EXPECT_EQ(device.used_bytes(), 16 * mib);
  EXPECT_TRUE(tested.release_block(second, {}).ok());
  EXPECT_EQ(take(other), second);
  device.advance_by(2'000'000);
  EXPECT_EQ(take(other), first);
  EXPECT_TRUE(tested.release_block(first, {}).ok());
  EXPECT_TRUE(tested.release_block(second, {}).ok());
  take(one);
  EXPECT_EQ(device.used_bytes(), 16 * mib) << "no fence existed, and the work was done";
  EXPECT_EQ(tested.stats().host_waits, 0U);
  EXPECT_EQ(device.hazard_count(), 0U);
}

/// Takes exactly what is needed, and gives every idle segment back before growth, or merges them later.
struct returning final : policy {
  std::vector<std::uint64_t> went;
  mutable std::vector<std::uint64_t> asked_to_merge;
  bool merges = false;
  bool throws = false;
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
  [[nodiscard]] bool returns_before_growth(const pool_view&, std::uint64_t, std::uint64_t) const override {
    return true;
  }
  [[nodiscard]] bool merges_idle(const pool_view&, std::uint64_t idle_bytes, std::uint64_t) const override {
    asked_to_merge.push_back(idle_bytes);
    if (throws) throw std::runtime_error{"no"};
    return merges;
  }
  void returned(const pool_view&, std::uint64_t bytes) override { went.push_back(bytes); }
};

struct returning_pool {
  sim_device device{{}};
  returning* own_policy;
  cacheless_pool tested;
  explicit returning_pool(stream_id_mode ids = stream_id_mode::query)
      : own_policy{new returning}, tested{device, config(ids), std::unique_ptr<policy>{own_policy}} {}
  static pool_config config(stream_id_mode ids) {
    pool_config made = pool_of_one_policy::config(80 * gib, {});
    made.stream_ids = ids;
    made.reuse = stream_reuse::poll;
    return made;
  }
  void take_and_give(std::initializer_list<std::uint64_t> sizes, stream_ref stream = {}) {
    std::vector<address> blocks;
    for (const std::uint64_t bytes : sizes) blocks.push_back(tested.take(bytes, stream));
    for (const address each : blocks) tested.give(each);
  }
};

TEST(growth, idle_segments_go_back_first_if_the_policy_says_so) {
  returning_pool x;
  x.take_and_give({400 * mib, 400 * mib, 20 * mib});
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_EQ(x.own_policy->went, (std::vector<std::uint64_t>{400 * mib, 400 * mib, 20 * mib})) << "largest first";
  EXPECT_EQ(x.device.used_bytes(), 800 * mib);
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
  EXPECT_TRUE(x.tested.check().ok()) << x.tested.check().message();
}

TEST(growth, idle_segments_stay_once_the_program_repeats) {
  for (const unsigned passes : {2U, 6U}) {
    returning_pool x;
    for (unsigned k = 0; k < passes; ++k) x.take_and_give({400 * mib, 300 * mib});
    EXPECT_EQ(x.tested.trim(mib).returned_bytes, 400 * mib);
    x.take_and_give({400 * mib});
    const bool repeats = passes == 6;
    EXPECT_EQ(x.own_policy->went, repeats ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{300 * mib});
    EXPECT_EQ(x.device.used_bytes(), repeats ? 700 * mib : 400 * mib);
  }
}

TEST(growth, idle_segments_stay_while_the_device_has_work) {
  returning_pool x;
  const address block = x.tested.take(400 * mib);
  x.device.enqueue_use({}, 1'000'000'000, block, 400 * mib);
  x.tested.give(block);
  const std::uint64_t before_ns = x.device.now_ns();
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_LT(x.device.now_ns() - before_ns, 1'000'000'000U) << "no wait for the work";
  EXPECT_EQ(x.device.used_bytes(), 1200 * mib);
  x.device.advance_by(1'000'000'000);
  ASSERT_NE(x.tested.take(900 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 1700 * mib) << "the work is done";
  EXPECT_EQ(x.device.hazard_count(), 0U);
}

// As on a card, where an event on an idle stream is done a microsecond after its record. The simulated device takes 1
// us for a record and 0.5 us for a query.
TEST(growth, asks_again_for_work_that_ends_within_a_few_queries) {
  returning_pool x;
  const address block = x.tested.take(400 * mib);
  x.tested.give(block);
  x.device.enqueue_use({}, 6'000, block, 400 * mib);
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 800 * mib);
}

TEST(growth, work_of_another_stream_keeps_idle_segments_too) {
  returning_pool x{stream_id_mode::notify};
  const stream_ref slow = x.device.create_stream();
  const address held = x.tested.take(2 * mib, slow);
  x.device.enqueue_use(slow, 1'000'000'000, held, 2 * mib);
  x.take_and_give({400 * mib});
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 1202 * mib);
  x.device.advance_by(1'000'000'000);
  ASSERT_NE(x.tested.take(900 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 1702 * mib);
}

TEST(growth, idle_segments_of_several_streams_go_back) {
  returning_pool x;
  ASSERT_NE(x.tested.take(2 * mib, x.device.create_stream()), 0U);
  x.take_and_give({400 * mib}, x.device.create_stream());
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_EQ(x.own_policy->went, (std::vector<std::uint64_t>{400 * mib}));
}

/// A pool that grew by 800 MiB beside two idle segments of 400 MiB because the device had work, which is then done.
struct pool_that_grew : returning_pool {
  address grown = 0;
  using returning_pool::returning_pool;
  void grow_beside_idle(stream_ref stream = {}) {
    const address first = tested.take(400 * mib, stream);
    const address second = tested.take(400 * mib, stream);
    device.enqueue_use(stream, 1'000'000'000, first, 400 * mib);
    tested.give(first);
    tested.give(second);
    grown = tested.take(800 * mib, stream);
    EXPECT_EQ(device.used_bytes(), 1600 * mib);
  }
  void end_of_work() { device.advance_by(1'000'000'000); }
  void free_all_and_end_work() {
    tested.give(grown);
    end_of_work();
  }
};

TEST(growth, idle_segments_become_one_once_the_device_is_idle) {
  pool_that_grew x;
  x.own_policy->merges = true;
  x.grow_beside_idle();
  ASSERT_NE(x.tested.take(20 * mib), 0U);
  EXPECT_TRUE(x.own_policy->asked_to_merge.empty()) << "the device has work";
  x.free_all_and_end_work();
  ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_EQ(x.own_policy->went, (std::vector<std::uint64_t>{800 * mib, 400 * mib})) << "the third is in use";
  EXPECT_EQ(x.device.used_bytes(), 800 * mib) << "as much as before it grew by 800 MiB";
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
  EXPECT_EQ(x.device.hazard_count(), 0U);
  ASSERT_NE(x.tested.take(400 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 800 * mib) << "served by the new segment";
  EXPECT_TRUE(x.tested.check().ok()) << x.tested.check().message();
}

TEST(growth, idle_segments_become_one_even_if_the_program_repeats_by_then) {
  returning_pool x;
  x.own_policy->merges = true;
  for (unsigned k = 0; k < 6; ++k) {
    x.take_and_give({400 * mib, 400 * mib});
    x.device.enqueue({}, 1'000'000'000);
    x.take_and_give({800 * mib});
  }
  EXPECT_EQ(x.device.used_bytes(), 1600 * mib);
  x.device.advance_by(10'000'000'000);
  x.take_and_give({400 * mib, 400 * mib});
  EXPECT_EQ(x.device.used_bytes(), 800 * mib);
}

TEST(growth, segments_of_a_pool_that_held_as_much_before_become_one_of_all_their_bytes) {
  pool_that_grew x;
  x.take_and_give({1600 * mib, 2 * mib});  // the second growth finds 1600 MiB held
  x.tested.trim(UINT64_MAX);
  ASSERT_EQ(x.device.used_bytes(), 0U);
  x.own_policy->merges = true;
  x.grow_beside_idle();
  x.free_all_and_end_work();
  ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 1600 * mib);
  ASSERT_NE(x.tested.take(1200 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 1600 * mib);
}

TEST(growth, merges_until_as_much_was_idle_as_growth_added) {
  pool_that_grew x;
  x.own_policy->merges = true;
  x.grow_beside_idle();
  x.end_of_work();
  const address first = x.tested.take(400 * mib);  // leaves one idle segment of 400 MiB: none to merge it with
  EXPECT_EQ(x.own_policy->asked_to_merge, (std::vector<std::uint64_t>{400 * mib}));
  EXPECT_TRUE(x.own_policy->went.empty());
  x.tested.give(first);
  ASSERT_NE(x.tested.take(2 * mib), 0U);
  ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_EQ(x.own_policy->asked_to_merge.size(), 2U) << "800 MiB were idle by then";
}

TEST(growth, a_policy_that_does_not_merge_is_asked_once) {
  pool_that_grew x;
  x.grow_beside_idle();
  x.end_of_work();
  for (int k = 0; k < 3; ++k) ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_EQ(x.own_policy->asked_to_merge.size(), 1U);
  EXPECT_EQ(x.device.used_bytes(), 1600 * mib);
}

TEST(growth, a_request_is_served_even_if_the_policy_throws_when_asked_to_merge) {
  pool_that_grew x;
  x.own_policy->throws = true;
  x.grow_beside_idle();
  x.end_of_work();
  for (int k = 0; k < 2; ++k) ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_EQ(x.own_policy->asked_to_merge.size(), 1U);
  EXPECT_TRUE(x.tested.check().ok()) << x.tested.check().message();
}

TEST(growth, a_merged_segment_that_the_device_refuses_costs_no_request) {
  pool_that_grew x;
  x.own_policy->merges = true;
  x.grow_beside_idle();
  x.free_all_and_end_work();
  x.device.fail_nth(device_call::alloc, 1);
  ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_EQ(x.device.used_bytes(), 400 * mib) << "another process took the memory";
  EXPECT_EQ(x.tested.stats().reserved_bytes, 400 * mib);
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_TRUE(x.tested.check().ok()) << x.tested.check().message();
}

TEST(growth, nothing_is_merged_during_a_capture) {
  pool_that_grew x{stream_id_mode::notify};
  x.own_policy->merges = true;
  const stream_ref captured = x.device.create_stream();
  x.grow_beside_idle();
  x.free_all_and_end_work();
  x.tested.locked([](arena& parts, arena_lock& lock) { parts.fences.poll(lock); });  // no fence is pending any more
  const result<std::uint64_t> key = x.tested.key_of(captured);
  {
    const result<pool_capture> capture = (*x.tested).streams().capture_begin(captured, *key, capture_effect::announced);
    ASSERT_TRUE(capture.ok());
    ASSERT_NE(x.tested.take(2 * mib, captured), 0U);
    ASSERT_NE(x.tested.take(2 * mib), 0U);
    EXPECT_TRUE(x.own_policy->went.empty());
  }
  ASSERT_NE(x.tested.take(2 * mib), 0U);
  EXPECT_FALSE(x.own_policy->went.empty()) << "it has ended";
}

TEST(growth, a_device_that_is_never_idle_is_asked_a_bounded_number_of_times) {
  pool_that_grew x{stream_id_mode::notify};
  x.own_policy->merges = true;
  const stream_ref busy = x.device.create_stream();
  x.grow_beside_idle();
  const address held = x.tested.take(2 * mib, busy);
  x.device.enqueue_use(busy, 1'000'000'000'000, held, 2 * mib);
  x.end_of_work();
  const auto queries = [&x] { return x.device.calls()[static_cast<std::size_t>(device_call::query)]; };
  const auto takes = [&x](unsigned times) {
    for (unsigned k = 0; k < times; ++k) x.tested.give(x.tested.take(2 * mib));
  };
  takes(2 * segment_merger::most_asks);
  EXPECT_TRUE(x.own_policy->asked_to_merge.empty());
  const std::uint64_t before = queries();
  takes(1000);
  EXPECT_EQ(queries(), before);
}

TEST(growth, threads_that_grow_while_another_merges_lose_nothing) {
  returning_pool x;
  x.own_policy->merges = true;
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&x, t] {
      for (unsigned k = 0; k < 400; ++k) {
        const std::uint64_t bytes = (2 + (k * 7 + t * 13) % 61) * mib;
        const address one = x.tested.take(bytes);
        const address two = x.tested.take(bytes / 2);
        ASSERT_NE(one, 0U);
        ASSERT_NE(two, 0U);
        x.device.enqueue_use({}, 20'000, one, bytes);
        x.tested.give(one);
        x.tested.give(two);
        if (k % 4 == t) x.device.advance_by(100'000);
      }
    });
  }
  threads.clear();  // joins them
  EXPECT_FALSE(x.own_policy->went.empty());
  EXPECT_EQ(x.device.hazard_count(), 0U);
  EXPECT_EQ(x.tested.stats().reserved_bytes, x.device.used_bytes());
  EXPECT_EQ(x.tested.stats().live_bytes, 0U);
  EXPECT_TRUE(x.tested.check().ok()) << x.tested.check().message();
}

TEST(growth, segments_with_a_live_block_stay) {
  returning_pool x;
  const address whole = x.tested.take(400 * mib);
  x.tested.give(whole);
  ASSERT_EQ(x.tested.take(mib), whole) << "cut from the idle segment";
  ASSERT_NE(x.tested.take(800 * mib), 0U);
  EXPECT_TRUE(x.own_policy->went.empty());
}

TEST(growth, an_alignment_beyond_the_segments_own_still_finds_room) {
  pool_of_one_policy x{gib, {}, {.bytes = 2 * mib}};
  const result<address> p = x.take(mib, 64 * mib);
  ASSERT_TRUE(p.ok()) << p.why().message();
  EXPECT_EQ(*p % (64 * mib), 0U);
  EXPECT_TRUE(x.tested.check().ok());
}

TEST(growth, an_error_of_the_driver_is_the_cause_and_costs_no_budget) {
  pool_of_one_policy x{gib, {}, {.bytes = 2 * mib}};
  x.device.fail_nth(device_call::alloc, 1);
  oom_slot refusal;
  request r;
  r.bytes = mib;
  address at = 0;
  EXPECT_EQ(x.tested.allocate(r, mib, &at, &refusal).code(), errc::out_of_memory);
  EXPECT_EQ(at, 0U);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->cause, oom_cause::driver_error);
  EXPECT_NE(refusal->driver_message.find("alloc"), std::string::npos);
  EXPECT_EQ(x.tested.stats().reserved_bytes, 0U);
  EXPECT_TRUE(x.take(mib).ok()) << "the next request is served";
}

}  // namespace
}  // namespace gpumem
