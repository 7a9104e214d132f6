// Which segments go back to the device.
#include <gtest/gtest.h>

#include "bits.hpp"
#include "cacheless_pool.hpp"
#include "gpumem/sim_device.hpp"
#include "known_segments.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// Takes a segment for each request, and gives all requested memory back.
struct segment_each final : policy {
  segment_request grow(const pool_view& /*view*/, std::uint64_t need) override {
    return {.bytes = need, .least_bytes = need};
  }
  [[nodiscard]] bool gives_back(give_back /*why*/, const pool_view& /*view*/) const override { return true; }
};

TEST(giving_back, returns_the_largest_segments_first) {
  sim_device device{sim_config{}};
  pool_config config;
  config.reuse = stream_reuse::device;
  config.limit_bytes = config.total_bytes = gib;
  cacheless_pool tested{device, config, std::make_unique<segment_each>()};
  std::vector<address> blocks;
  for (const std::uint64_t bytes : {16 * mib, 64 * mib, 2 * mib, 128 * mib, 32 * mib}) {
    address at = 0;
    ASSERT_TRUE(tested.allocate({.bytes = bytes}, bytes, &at, nullptr).ok());
    blocks.push_back(at);
  }
  for (const address at : blocks) ASSERT_TRUE(tested.release_block(at, {}).ok());
  ASSERT_EQ(tested.stats().reserved_bytes, 242 * mib);
  EXPECT_EQ(tested.trim(mib).returned_bytes, 128 * mib);
  EXPECT_EQ(tested.trim(65 * mib).returned_bytes, 96 * mib) << "64 and 32 MiB: two calls, not three";
  EXPECT_EQ(tested.stats().returned_segments, 3U);
  EXPECT_EQ(tested.trim(UINT64_MAX).returned_bytes, 18 * mib);
}

TEST(giving_back, tells_observers_before_a_segment_goes) {
  sim_device device{sim_config{}};
  cacheless_pool tested{device, {}, std::make_unique<segment_each>()};
  const auto observer = std::make_shared<known_segments>();
  (*tested).observe_segments(observer);
  const address kept = tested.take(8 * mib);
  const address going = tested.take(32 * mib);
  tested.give(going);
  std::vector<std::uint64_t> used;
  observer->at_event = [&](const known_segments::event& e) {
    EXPECT_FALSE(e.added);
    EXPECT_EQ(e.extent.begin, going);
    used.push_back(device.used_bytes());
    EXPECT_EQ(tested.stats().live_blocks, 1U) << "asked without a deadlock";
    if (tested.is_live(kept)) tested.give(kept);
  };
  EXPECT_EQ(tested.trim(32 * mib).returned_bytes, 32 * mib);
  EXPECT_EQ(used, std::vector<std::uint64_t>{40 * mib}) << "the memory is still there";
  EXPECT_TRUE(tested.check().ok()) << "a block may be freed meanwhile";
  observer->expect_all((*tested).segments());
}

struct throwing_observer final : segment_observer {
  void segment_added(const segment_extent&) override { throw std::runtime_error{"no table"}; }
  void segment_removing(const segment_extent&) override { throw 5; }
};

TEST(giving_back, an_observer_that_throws_is_logged_and_the_others_are_told) {
  sim_device device{sim_config{}};
  cacheless_pool tested{device, {}, std::make_unique<segment_each>()};
  const auto observer = std::make_shared<known_segments>();
  (*tested).observe_segments(observer);
  (*tested).observe_segments(std::make_shared<throwing_observer>());
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  tested.give(tested.take(8 * mib));
  EXPECT_EQ(tested.trim(UINT64_MAX).returned_bytes, 8 * mib);
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("no table"), std::string::npos) << lines[0];
  EXPECT_EQ(observer->events().size(), 2U);
}

}  // namespace
}  // namespace gpumem
