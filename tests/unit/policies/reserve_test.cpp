#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/policy.hpp"

namespace gpumem::test {
namespace {

TEST(Reserve, IsSmallOnSmallCards) {
  EXPECT_EQ(default_reserve_bytes(0, 9), 225 * mib);
  EXPECT_EQ(default_reserve_bytes(2 * gib - 1, 5), 225 * mib);
}

TEST(Reserve, FollowsTheComputeCapability) {
  EXPECT_EQ(default_reserve_bytes(2 * gib, 3), 500 * mib);
  EXPECT_EQ(default_reserve_bytes(2 * gib, 6), 500 * mib);
  EXPECT_EQ(default_reserve_bytes(16 * gib, 7), 1050 * mib);
  EXPECT_EQ(default_reserve_bytes(40 * gib, 8), 1536 * mib);
  EXPECT_EQ(default_reserve_bytes(80 * gib, 9), 1800 * mib);
  EXPECT_EQ(default_reserve_bytes(192 * gib, 10), 1800 * mib);
}

}  // namespace
}  // namespace gpumem::test
