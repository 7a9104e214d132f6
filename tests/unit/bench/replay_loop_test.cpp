/// A trace as a tight loop: the same operations in the same order, each on its block's own stream.
#include "replay_loop.hpp"

#include <gtest/gtest.h>

#include "measure_loop.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

TEST(replay_loop, keeps_order_and_frees_on_the_streams_of_the_blocks) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,10,1000,0\n"
      "1,00:00:00:000001,allocate,20,2000,7\n"
      "1,00:00:00:000002,free,20,2000,0\n"
      "1,00:00:00:000003,allocate,30,3000,7\n");
  const replay_loop loop = loop_of(t);
  ASSERT_EQ(loop.ops.size(), 4U);
  EXPECT_EQ(loop.ops[0].bytes, 1000U);
  EXPECT_FALSE(loop.ops[0].frees);
  EXPECT_EQ(loop.ops[1].bytes, 2000U);
  EXPECT_TRUE(loop.ops[2].frees);
  EXPECT_EQ(loop.ops[2].slot, loop.ops[1].slot);
  EXPECT_EQ(loop.ops[2].stream, loop.ops[1].stream) << "not the one that the trace frees it on";
  EXPECT_NE(loop.ops[2].stream, loop.ops[0].stream);
  EXPECT_EQ(loop.ops[3].slot, loop.ops[1].slot) << "a slot is used again";
  EXPECT_EQ(loop.frees, 1U);
  EXPECT_EQ(loop.slots, 2U);
  EXPECT_EQ(loop.streams, 2U);
}

TEST(replay_loop, knows_what_is_live_at_the_end) {
  const replay_loop loop =
      loop_of(trace_of("1,00:00:00:000000,allocate,10,1000,0\n"
                       "1,00:00:00:000001,allocate,20,2000,7\n"
                       "1,00:00:00:000002,free,10,1000,0\n"));
  ASSERT_EQ(loop.live_at_end.size(), 1U);
  EXPECT_EQ(loop.live_at_end[0].slot, loop.ops[1].slot);
  EXPECT_EQ(loop.live_at_end[0].stream, loop.ops[1].stream);
  EXPECT_TRUE(loop.live_at_end[0].frees);
}

TEST(loop_time, is_none_if_the_drivers_calls_took_as_long_alone) {
  EXPECT_EQ(time_without_calls(100, 40), 60);
  EXPECT_EQ(time_without_calls(100, 100), std::nullopt);
  EXPECT_EQ(time_without_calls(100, 140), std::nullopt);
}

}  // namespace
}  // namespace gpumem::bench
