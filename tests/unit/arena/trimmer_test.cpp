// Which segments go back to the device.
#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"
#include "lone_arena.hpp"

namespace gpumem {
namespace {

/// Takes a segment for each request, and gives back whatever is asked.
struct segment_each final : policy {
  segment_request grow(const pool_view& /*view*/, std::uint64_t need) override {
    return {.bytes = need, .least_bytes = need};
  }
  [[nodiscard]] bool gives_back(give_back /*why*/, const pool_view& /*view*/) const override { return true; }
};

TEST(giving_back, returns_the_largest_segments_first) {
  sim_device device{sim_config{}};
  arena_config config;
  config.limit_bytes = config.total_bytes = gib;
  lone_arena tested{device, config, std::make_unique<segment_each>()};
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

}  // namespace
}  // namespace gpumem
