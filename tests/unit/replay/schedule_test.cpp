/// Second uses fall within their block's life, on another stream, the same for the same seed.
#include "schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "test_files.hpp"

namespace gpumem::bench {
namespace {

std::string many_blocks(int streams) {
  std::string rows;
  for (int i = 1; i <= 1000; ++i) {
    const std::string tail = std::to_string(i * 4096) + ",64," + std::to_string(i % streams) + "\n";
    rows += "1,00:00:00:000000,allocate," + tail;
    if (i % 3 != 0) rows += "1,00:00:00:000000,free," + tail;
  }
  return rows;
}

TEST(schedule, uses_every_block_once_within_its_life) {
  for (const int streams : {1, 2, 5}) {
    const trace t = trace_of(many_blocks(streams));
    const auto uses = plan_second_uses(t, 1.0, 7);
    ASSERT_EQ(uses.size(), 1000U);
    std::size_t next = 0;
    std::vector<const trace_op*> live(t.slots);
    std::size_t seen = 0;
    for (std::size_t i = 0; i < t.ops.size(); ++i) {
      live[t.ops[i].slot] = t.ops[i].kind == op_kind::allocate ? &t.ops[i] : nullptr;
      for (; next < uses.size() && uses[next].after_op == i; ++next, ++seen) {
        ASSERT_NE(live[uses[next].slot], nullptr);
        EXPECT_EQ(uses[next].bytes, live[uses[next].slot]->bytes);
        EXPECT_NE(uses[next].stream, live[uses[next].slot]->stream);
        EXPECT_LE(uses[next].stream, std::max(streams - 1, 1));
      }
    }
    EXPECT_EQ(seen, 1000U);
  }
}

TEST(schedule, takes_the_share_and_follows_the_seed) {
  const trace t = trace_of(many_blocks(1));
  EXPECT_TRUE(plan_second_uses(t, 0, 1).empty());
  const auto tenth = plan_second_uses(t, 0.1, 1);
  EXPECT_NEAR(static_cast<double>(tenth.size()), 100.0, 40.0);
  const auto places = [](const std::vector<second_use>& uses) {
    std::vector<std::size_t> out;
    for (const second_use& each : uses) out.push_back(each.after_op);
    return out;
  };
  EXPECT_EQ(places(plan_second_uses(t, 0.1, 1)), places(tenth));
  EXPECT_NE(places(plan_second_uses(t, 0.1, 2)), places(tenth));
}

}  // namespace
}  // namespace gpumem::bench
