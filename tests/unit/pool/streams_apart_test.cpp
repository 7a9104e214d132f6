// A pool of pages that keeps the first stream's blocks and those of others in ranges of their own.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "bits.hpp"
#include "cacheless_pool.hpp"
#include "gpumem/sim_device.hpp"
#include "without_exceptions.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page_size = 2 * mib;
constexpr std::uint64_t range_size = 64 * page_size;

/// Makes new pages up to `most_bytes`, one by one, and moves idle ones beyond.
struct pages_apart final : policy {
  std::uint64_t most_bytes;
  bool other_first;
  unsigned classes = 2;
  pages_apart(std::uint64_t most, bool other) : most_bytes{most}, other_first{other} {}
  [[nodiscard]] page_rules pages(const pool_view&) const override {
    return {.range_bytes = range_size, .streams_apart = true};
  }
  [[nodiscard]] unsigned segment_classes() const override { return classes; }
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t, std::uint64_t missing) const override {
    return {.make_bytes = std::min(missing, most_bytes - std::min(most_bytes, view.reserved_bytes)),
            .run_bytes = page_size,
            .other_range_first = other_first};
  }
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
};

/// A pool of at most eight pages, and two streams.
struct apart_pool {
  sim_device device;
  cacheless_pool tested;
  stream_ref one = device.create_stream();
  stream_ref two = device.create_stream();
  explicit apart_pool(std::uint64_t make_bytes, bool other_first = false, stream_reuse reuse = stream_reuse::poll)
      : tested{device, config(reuse), std::make_unique<pages_apart>(make_bytes, other_first)} {}
  ~apart_pool() {
    EXPECT_TRUE(tested.check().ok()) << tested.check().message();
    EXPECT_EQ(device.hazard_count(), 0U);
  }
  apart_pool(const apart_pool&) = delete;
  apart_pool& operator=(const apart_pool&) = delete;

  static pool_config config(stream_reuse reuse) {
    pool_config c;
    c.reuse = reuse;
    c.limit_bytes = 8 * page_size;
    c.free_wait_ns = 0;
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
  /// Whether the address is in the range of the first stream's block `mine`.
  static bool is_near(address at, address mine) { return at + range_size > mine && at < mine + range_size; }
};

TEST(streams_apart, another_streams_blocks_lie_elsewhere_and_pages_move_there) {
  apart_pool x{4 * page_size};
  const address mine = x.take(4 * page_size, x.one);
  x.give(mine);
  x.device.advance_by(20'000'000);
  const address other = x.take(2 * page_size, x.two);
  EXPECT_NE(other, 0U);
  EXPECT_FALSE(x.is_near(other, mine));
  EXPECT_EQ(x.tested.stats().remapped_pages, 2U);
  EXPECT_EQ(x.tested.stats().reserved_bytes, 4 * page_size);
}

TEST(streams_apart, a_request_takes_the_other_range_before_new_pages_if_the_policy_says_so) {
  apart_pool x{8 * page_size, true};
  const address mine = x.take(4 * page_size, x.one);
  x.give(mine);
  x.device.advance_by(20'000'000);
  EXPECT_EQ(x.take(2 * page_size, x.two), mine);
  EXPECT_EQ(x.tested.stats().mapped_pages, 4U);
  EXPECT_EQ(x.tested.stats().remapped_pages, 0U);
}

TEST(streams_apart, a_request_takes_the_other_range_rather_than_be_refused) {
  apart_pool x{8 * page_size};
  std::vector<address> halves(16);
  for (address& each : halves) each = x.take(page_size / 2, x.one);
  for (std::size_t k = 0; k < halves.size(); k += 2) x.give(halves[k]);
  x.device.advance_by(20'000'000);
  const address other = x.take(page_size / 2, x.two);
  EXPECT_NE(other, 0U) << "no page is wholly idle";
  EXPECT_TRUE(x.is_near(other, halves[1]));
}

TEST(streams_apart, while_no_page_may_move_a_request_takes_the_other_range) {
  apart_pool x{8 * page_size};
  const address mine = x.take(4 * page_size, x.one);
  x.give(mine);
  ASSERT_NE(x.take(page_size, x.two), 0U);  // what the first stream freed gets a fence
  x.device.advance_by(20'000'000);
  ASSERT_NE(x.take(page_size, x.two), 0U);  // that is done
  result<pool_capture> capture =
      (*x.tested).streams().capture_begin(x.two, *x.tested.key_of(x.two), capture_effect::announced);
  ASSERT_TRUE(capture.ok());
  const address captured = x.tested.take(2 * page_size, x.two);
  EXPECT_TRUE(x.is_near(captured, mine)) << captured;
  EXPECT_EQ(x.tested.stats().reserved_bytes, 6 * page_size);
  static_cast<void>(capture->end());
}

TEST(streams_apart, with_waits_on_the_device_or_the_host_freed_memory_serves_where_it_is) {
  for (const stream_reuse reuse : {stream_reuse::device, stream_reuse::host}) {
    pool_config waits = apart_pool::config(reuse);
    waits.free_wait_ns = 1'000'000'000;
    sim_device device;
    cacheless_pool tested{device, waits, std::make_unique<pages_apart>(8 * page_size, false)};
    const stream_ref one = device.create_stream();
    const address mine = tested.take(4 * page_size, one);
    device.enqueue_use(one, 1'000'000, mine, 4 * page_size);
    tested.give(mine);
    EXPECT_EQ(tested.take(4 * page_size, device.create_stream()), mine);
    EXPECT_EQ(tested.stats().reserved_bytes, 4 * page_size);
  }
}

TEST(streams_apart, all_streams_share_the_first_range_if_there_are_no_addresses_for_another) {
  apart_pool x{8 * page_size};
  const address mine = x.take(page_size, x.one);
  for (std::uint64_t k = 1; k <= 8; ++k) x.device.fail_nth(device_call::reserve, k, errc::out_of_memory);
  const address other = x.take(page_size, x.two);
  EXPECT_NE(other, 0U);
  EXPECT_TRUE(x.is_near(other, mine));
  const std::uint64_t reserves = x.device.calls()[static_cast<std::size_t>(device_call::reserve)];
  EXPECT_NE(x.take(page_size, x.two), 0U);
  EXPECT_EQ(x.device.calls()[static_cast<std::size_t>(device_call::reserve)], reserves) << "it is asked only once";
}

TEST(streams_apart, a_request_that_was_under_way_when_another_found_no_addresses_shares_the_first_range) {
  apart_pool x{8 * page_size};
  ASSERT_NE(x.take(page_size, x.one), 0U);
  const std::uint64_t key = *x.tested.key_of(x.two);
  for (std::uint64_t k = 1; k <= 8; ++k) x.device.fail_nth(device_call::reserve, k, errc::out_of_memory);
  x.tested.locked([&](arena& parts, arena_lock& lock) GPUMEM_UNDER_LOCK {
    result<pending_request> late = parts.prepare({.bytes = page_size, .stream = x.two}, page_size, key);
    ASSERT_TRUE(late.ok());
    parts.state.rules.streams_apart = false;  // as the other thread's request does
    const result<block_index> placed = parts.allocate(lock, *late);
    ASSERT_TRUE(placed.ok());
    ASSERT_NE(*placed, no_block);
    parts.free_block(*placed, late->owner);
  });
}

TEST(streams_apart, a_policy_needs_two_segment_classes) {
  sim_device device;
  auto one_class = std::make_unique<pages_apart>(8 * page_size, false);
  one_class->classes = 1;
  try {
    cacheless_pool tested{device, apart_pool::config(stream_reuse::poll), std::move(one_class)};
    FAIL() << "expected policy_failed";
  } catch (const thrown_status& e) {
    EXPECT_EQ(e.why.code(), errc::policy_failed);
    EXPECT_NE(e.why.message().find("streams_apart with 1 segment_classes; expected 2"), std::string::npos)
        << e.why.message();
  }
}

}  // namespace
}  // namespace gpumem
