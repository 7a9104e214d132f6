#include "deferred_frees.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"

namespace gpumem {
namespace {

using sizes = std::vector<std::uint64_t>;

/// The bytes of each batch.
sizes taken(deferred_frees& of, bool memory_is_short) {
  sizes out;
  of.take(memory_is_short, [&](const deferred_frees::batch& b) { out.push_back(b.bytes); });
  return out;
}

TEST(frees_aside, a_batch_is_complete_by_frees_or_by_bytes) {
  deferred_frees frees;
  for (std::uint32_t k = 1; k < deferred_frees::frees_a_fence; ++k) EXPECT_FALSE(frees.push(k, 4096));
  EXPECT_TRUE(frees.push(16, 4096));
  EXPECT_FALSE(frees.push(17, mib - 512));
  EXPECT_TRUE(frees.push(18, 512));
  EXPECT_TRUE(frees.push(19, mib)) << "a large one needs no other";
  EXPECT_FALSE(frees.push(20, 512));
  EXPECT_EQ(taken(frees, false), (sizes{16 * 4096, mib, mib})) << "the one begun stays";
  EXPECT_EQ(taken(frees, true), sizes{512});
}

TEST(frees_aside, small_frees_share_a_fence_though_memory_was_short) {
  deferred_frees frees;
  EXPECT_FALSE(frees.push(1, 4096));
  EXPECT_EQ(taken(frees, true), sizes{4096});
  for (std::uint32_t k = 1; k < deferred_frees::frees_a_fence; ++k) EXPECT_FALSE(frees.push(k, 4096));
  EXPECT_TRUE(frees.push(16, 4096));
}

}  // namespace
}  // namespace gpumem
