// Each step of the ladder alone: the memory that it finds when no free block fits, and the cause of a final failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cacheless_pool.hpp"
#include "log.hpp"
#include "segment_each.hpp"

namespace gpumem {
namespace {

/// Room for 16 MiB, of two streams whose work takes a millisecond.
struct short_of_memory {
  sim_device device;
  cacheless_pool tested;
  stream_ref one = device.create_stream();
  stream_ref two = device.create_stream();
  explicit short_of_memory(stream_reuse reuse = stream_reuse::device, bool gives = false)
      : tested{device, config(reuse), std::make_unique<segment_each>(gives)} {}
  ~short_of_memory() {
    EXPECT_TRUE(tested.check().ok()) << tested.check().message();
    EXPECT_EQ(device.hazard_count(), 0U);
  }
  short_of_memory(const short_of_memory&) = delete;
  short_of_memory& operator=(const short_of_memory&) = delete;

  static pool_config config(stream_reuse reuse) {
    pool_config c;
    c.limit_bytes = 16 * mib;
    c.reuse = reuse;
    return c;
  }
  address take(std::uint64_t bytes, stream_ref s) {
    const address at = tested.take(bytes, s);
    if (at == 0) return 0;
    device.handed_out(at, bytes, s);
    device.enqueue_use(s, 1'000'000, at, bytes);
    return at;
  }
  void give(address at) {
    device.given_back(at);
    tested.give(at);
  }
  [[nodiscard]] oom_cause cause_of(std::uint64_t bytes, stream_ref s) {
    oom_slot report;
    address at = 0;
    EXPECT_EQ(tested.allocate({.bytes = bytes, .stream = s}, bytes, &at, &report).code(), errc::out_of_memory);
    return report->cause;
  }
};

TEST(oom_ladder, under_device_a_stream_waits_for_the_one_whose_block_fits_best) {
  short_of_memory x;
  const address large = x.take(12 * mib, x.one);
  const address small = x.take(4 * mib, x.one);
  x.give(large);
  x.give(small);
  EXPECT_EQ(x.take(4 * mib, x.two), small);
  EXPECT_EQ(x.tested.stats().device_waits, 1U);
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
}

TEST(oom_ladder, under_device_a_block_that_waits_for_its_uses_serves_as_well) {
  short_of_memory x;
  const address a = x.take(16 * mib, x.one);
  ASSERT_TRUE(x.tested.record_use(a, x.two).ok());
  x.device.enqueue_use(x.two, 1'000'000, a, 16 * mib);
  x.give(a);
  EXPECT_EQ(x.take(16 * mib, x.two), a);
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
}

TEST(oom_ladder, what_several_streams_freed_is_joined_where_none_is_large_enough_alone) {
  short_of_memory x;
  const stream_ref third = x.device.create_stream();
  const address whole = x.take(16 * mib, x.one);
  x.give(whole);
  const address low = x.take(8 * mib, x.one);
  const address high = x.take(8 * mib, x.two);
  x.give(low);
  x.give(high);
  EXPECT_EQ(x.take(16 * mib, third), whole);
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
}

TEST(oom_ladder, under_poll_only_what_is_done_is_taken) {
  short_of_memory x{stream_reuse::poll};
  const address a = x.take(8 * mib, x.one);
  x.give(a);
  EXPECT_NE(x.take(8 * mib, x.two), a) << "its work is under way: growth serves";
  x.device.advance_by(2'000'000);
  EXPECT_EQ(x.take(8 * mib, x.two), a);
  EXPECT_EQ(x.tested.stats().device_waits, 0U);
}

TEST(oom_ladder, under_poll_an_event_is_asked_again_before_the_pool_grows) {
  short_of_memory x{stream_reuse::poll};
  const call_cost query = sim_default_costs()[static_cast<std::size_t>(device_call::query)];
  const call_cost record = sim_default_costs()[static_cast<std::size_t>(device_call::record)];
  const address a = x.tested.take(8 * mib, x.one);
  x.device.enqueue(x.one, record.fixed_ns + 3 * query.fixed_ns);
  x.give(a);
  EXPECT_EQ(x.take(8 * mib, x.two), a) << "its work ends before growing would";
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
}

TEST(oom_ladder, under_host_the_host_waits_before_it_grows) {
  short_of_memory x{stream_reuse::host};
  const address a = x.take(8 * mib, x.one);
  x.give(a);
  EXPECT_EQ(x.take(8 * mib, x.two), a);
  EXPECT_EQ(x.tested.stats().host_waits, 1U);
  EXPECT_EQ(x.device.used_bytes(), 8 * mib);
}

TEST(oom_ladder, under_host_a_block_with_uses_is_waited_for_too) {
  short_of_memory x{stream_reuse::host};
  const address a = x.take(8 * mib, x.one);
  ASSERT_TRUE(x.tested.record_use(a, x.two).ok());
  x.device.enqueue_use(x.two, 1'000'000, a, 8 * mib);
  x.give(a);
  EXPECT_EQ(x.take(8 * mib, x.two), a);
  EXPECT_GE(x.tested.stats().host_waits, 1U);
}

TEST(oom_ladder, the_host_waits_at_last_whatever_the_way_of_reuse) {
  short_of_memory x{stream_reuse::poll};
  const address a = x.take(16 * mib, x.one);
  x.give(a);
  EXPECT_EQ(x.take(16 * mib, x.two), a);
  EXPECT_GE(x.tested.stats().host_waits, 1U);
}

TEST(oom_ladder, a_policy_that_gives_back_under_pressure_gets_segments_of_another_size) {
  short_of_memory x{stream_reuse::device, true};
  for (const address at : {x.take(8 * mib, x.one), x.take(8 * mib, x.one)}) x.give(at);
  EXPECT_NE(x.take(16 * mib, x.one), 0U);
  EXPECT_EQ(x.tested.stats().returned_segments, 2U);
  EXPECT_EQ(x.device.used_bytes(), 16 * mib);
}

/// Takes what is needed, at least a step, and with `returns` would give back everything before it grows.
struct keeps_whole final : policy {
  std::uint64_t step_bytes;
  bool returns;
  explicit keeps_whole(std::uint64_t step = 0, bool gives = true) : step_bytes{step}, returns{gives} {}
  segment_request grow(const pool_view&, std::uint64_t need) override {
    return {.bytes = std::max(need, step_bytes), .least_bytes = need};
  }
  [[nodiscard]] bool keeps_segments_whole() const override { return true; }
  [[nodiscard]] bool returns_before_growth(const pool_view&, std::uint64_t, std::uint64_t) const override {
    return returns;
  }
};

TEST(oom_ladder, a_segment_for_large_requests_stays_whole_until_the_pool_cannot_grow) {
  sim_device device;
  cacheless_pool tested{device, short_of_memory::config(stream_reuse::poll), std::make_unique<keeps_whole>()};
  for (const int k : {1, 2, 3}) ASSERT_NE(tested.take(mib), 0U) << k;
  address large = tested.take(12 * mib);
  tested.give(large);
  ASSERT_EQ(tested.take(12 * mib), large);
  tested.give(large);
  const auto is_in_large = [large](address at) { return at >= large && at < large + 12 * mib; };
  EXPECT_FALSE(is_in_large(tested.take(mib)));
  EXPECT_EQ(device.used_bytes(), 16 * mib) << "it did not go back either";
  EXPECT_TRUE(is_in_large(tested.take(mib)));
  EXPECT_TRUE(is_in_large(tested.take(mib)));
  EXPECT_EQ(tested.take(12 * mib), 0U);
  EXPECT_EQ(device.used_bytes(), 16 * mib);
  EXPECT_TRUE(tested.check().ok()) << tested.check().message();
}

/// A pool in which 16 blocks of 1 MiB stay, and a segment of 100 MiB to which large requests of stream one keep coming.
struct pool_that_keeps_whole {
  sim_device device;
  cacheless_pool tested;
  stream_ref one = device.create_stream();
  stream_ref two = device.create_stream();
  address large = 0;
  explicit pool_that_keeps_whole(stream_reuse reuse, std::uint64_t step_bytes = 0)
      : pool_that_keeps_whole{config(reuse), std::make_unique<keeps_whole>(step_bytes)} {}
  pool_that_keeps_whole(const pool_config& c, std::unique_ptr<policy> grows) : tested{device, c, std::move(grows)} {
    for (int k = 0; k < 16; ++k) EXPECT_NE(tested.take(mib, one), 0U);
    for (int k = 0; k < 3; ++k) tested.give(large = tested.take(100 * mib, one));
  }
  static pool_config config(stream_reuse reuse) {
    pool_config c;
    c.limit_bytes = 80 * gib;
    c.reuse = reuse;
    return c;
  }
  [[nodiscard]] std::uint64_t allocations() const {
    return device.calls()[static_cast<std::size_t>(device_call::alloc)];
  }
};

TEST(oom_ladder, a_pool_that_keeps_a_segment_whole_grows_before_it_waits_for_another_stream) {
  for (const stream_reuse reuse : {stream_reuse::host, stream_reuse::device, stream_reuse::poll}) {
    pool_that_keeps_whole x{reuse};
    const address other = x.tested.take(20 * mib, x.two);
    x.device.enqueue(x.two, 1'000'000'000);
    x.tested.give(other);
    const statistics before = x.tested.stats();
    ASSERT_NE(x.tested.take(mib, x.one), 0U);
    const statistics after = x.tested.stats();
    EXPECT_EQ(after.host_waits + after.device_waits, before.host_waits + before.device_waits);
    EXPECT_EQ(after.reserved_bytes, before.reserved_bytes + 2 * mib);
  }
}

TEST(oom_ladder, a_request_divides_what_becomes_free_too_late_to_keep_it_whole) {
  pool_config no_wait = pool_that_keeps_whole::config(stream_reuse::poll);
  no_wait.limit_bytes = 116 * mib;  // what stream one's blocks take
  no_wait.free_wait_ns = 0;
  pool_that_keeps_whole x{no_wait, std::make_unique<keeps_whole>(0, false)};
  const address of_two = x.tested.take(mib, x.two);
  EXPECT_TRUE(of_two >= x.large && of_two < x.large + 100 * mib) << of_two;
}

TEST(oom_ladder, a_device_that_is_full_is_asked_once_to_keep_a_segment_whole) {
  pool_that_keeps_whole x{stream_reuse::poll};
  x.device.set_foreign_bytes(1000 * gib);
  const std::uint64_t before = x.allocations();
  for (std::uint64_t k = 0; k < 100; ++k) {
    const address small = x.tested.take(mib + 512 * k, x.one);
    ASSERT_NE(small, 0U);
    x.tested.give(small);
    x.tested.give(x.tested.take(100 * mib - 512 * k, x.one));
  }
  EXPECT_EQ(x.allocations(), before + 1);
}

TEST(oom_ladder, a_pool_that_takes_idle_memory_last_finds_it_rather_than_divide) {
  pool_that_keeps_whole x{stream_reuse::poll, 16 * mib};
  x.device.enqueue(x.one, 3'600'000'000'000);
  x.device.enqueue(x.two, 3'600'000'000'000);
  ASSERT_NE(x.tested.take(16 * mib, x.two), 0U);
  x.tested.give(x.tested.take(100 * mib, x.one));
  x.tested.locked([](arena& parts, arena_lock&) GPUMEM_UNDER_LOCK { parts.state.fits.idle_last = true; });
  const std::uint64_t before_bytes = x.tested.stats().reserved_bytes;
  for (std::uint64_t k = 0; k < 100; ++k) {
    x.tested.give(x.tested.take(mib + 512 * (k * k % 1000), x.one));
    x.tested.give(x.tested.take(100 * mib - 512 * (k * k % 1000), x.one));
  }
  EXPECT_LE(x.tested.stats().reserved_bytes, before_bytes + 32 * mib);
}

TEST(oom_ladder, callbacks_are_asked_again_while_they_say_yes_and_may_throw) {
  short_of_memory x;
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  const address a = x.take(16 * mib, x.one);
  unsigned asked = 0;
  (*x.tested).on_out_of_memory([](int, std::uint64_t) -> bool { throw std::runtime_error{"not\ntoday"}; });
  (*x.tested).on_out_of_memory([](int, std::uint64_t) -> bool { throw 5; });
  (*x.tested).on_out_of_memory([&](int device, std::uint64_t bytes) {
    EXPECT_EQ(device, 0);
    EXPECT_EQ(bytes, 16 * mib);
    if (++asked == 3) x.give(a);
    return true;
  });
  EXPECT_EQ(x.take(16 * mib, x.one), a) << "the lock was free, and the third answer freed a block";
  EXPECT_EQ(asked, 3U);
  EXPECT_EQ(x.take(16 * mib, x.one), 0U);
  EXPECT_EQ(asked, 3U + 16U) << "a callback that only says yes does not hold a request for ever";
  set_log_sink(before);
  ASSERT_GE(lines.size(), 2U);
  EXPECT_NE(lines[0].find("an out-of-memory callback threw: not\\x0atoday"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("an out-of-memory callback threw no std::exception"), std::string::npos) << lines[1];
}

TEST(oom_ladder, says_why_it_failed) {
  {
    short_of_memory x;
    EXPECT_EQ(x.cause_of(17 * mib, x.one), oom_cause::limit);
  }
  {
    short_of_memory x;
    x.device.set_foreign_bytes(80 * gib - 4 * mib);
    EXPECT_EQ(x.cause_of(8 * mib, x.one), oom_cause::device_full);
  }
  {
    short_of_memory x;
    x.device.fail_nth(device_call::alloc, 1);
    EXPECT_EQ(x.cause_of(8 * mib, x.one), oom_cause::driver_error);
  }
  {
    short_of_memory x;
    for (const address at : {x.take(8 * mib, x.one), x.take(8 * mib, x.one)}) x.give(at);
    EXPECT_EQ(x.cause_of(16 * mib, x.one), oom_cause::fragmentation);
  }
  {
    short_of_memory x;
    const address a = x.take(16 * mib, x.one);
    x.give(a);
    const std::uint64_t key = *x.tested.key_of(x.two);
    const result<pool_capture> capture = (*x.tested).streams().capture_begin(x.two, key, capture_effect::announced);
    ASSERT_TRUE(capture.ok());
    ASSERT_TRUE(x.device.begin_capture(x.two).ok());
    EXPECT_EQ(x.cause_of(16 * mib, x.two), oom_cause::pending_work) << "a capture waits for nothing";
    ASSERT_TRUE(x.device.end_capture(x.two).ok());
  }
}

}  // namespace
}  // namespace gpumem
