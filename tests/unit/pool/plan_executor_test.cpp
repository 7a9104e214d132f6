// Following a plan: the conditions for a planned place, and the places of all other requests.
#include <gtest/gtest.h>

#include "cacheless_pool.hpp"
#include "log.hpp"
#include "segment_each.hpp"

namespace gpumem {
namespace {

/// A plan of four blocks of 1 MiB each: two of stream 0, one above the other, then two of stream 1 in the same places.
std::shared_ptr<const plan::step_plan> two_streams() {
  plan::step_plan made;
  made.height_bytes = 2 * mib;
  for (const std::uint32_t k : {0U, 1U, 2U, 3U}) {
    made.allocations.push_back({.bytes = mib, .offset = (k % 2) * mib, .stream = static_cast<std::uint16_t>(k / 2)});
  }
  return std::make_shared<const plan::step_plan>(made);
}

struct planned_arena {
  sim_device device;
  cacheless_pool tested;
  stream_ref one = device.create_stream();
  stream_ref two = device.create_stream();
  explicit planned_arena(stream_reuse reuse, std::uint64_t at_first = 2 * mib)
      : tested{device, config(reuse), follows(at_first)} {}
  ~planned_arena() {
    EXPECT_TRUE(tested.check().ok()) << tested.check().message();
    for (const hazard& h : device.hazards()) ADD_FAILURE() << h.to_string();
  }
  planned_arena(const planned_arena&) = delete;
  planned_arena& operator=(const planned_arena&) = delete;

  static pool_config config(stream_reuse reuse) {
    pool_config c;
    c.reuse = reuse;
    c.plan = two_streams();
    return c;
  }
  static std::unique_ptr<policy> follows(std::uint64_t at_first) {
    auto made = std::make_unique<segment_each>();
    made->two_classes = true;
    made->at_first = at_first;
    return made;
  }
  address take(std::uint64_t bytes, stream_ref s) {
    const address at = tested.take(bytes, s);
    device.handed_out(at, bytes, s);
    device.enqueue_use(s, 1'000'000, at, bytes);
    return at;
  }
  void give(address at) {
    device.given_back(at);
    tested.give(at);
  }
};

TEST(planned_requests, each_has_its_place_and_a_departure_lies_beside_the_plan) {
  planned_arena x{stream_reuse::device};
  const address low = x.take(mib, x.one);
  const address departs = x.take(3 * mib, x.one);
  const address high = x.take(mib, x.one);
  EXPECT_EQ(high, low + mib);
  EXPECT_TRUE(departs + 3 * mib <= low || departs >= low + 2 * mib);
  EXPECT_EQ(x.tested.stats().plan_placements, 2U);
  EXPECT_EQ(x.tested.stats().plan_departures, 1U);
  for (const address at : {low, departs, high}) x.give(at);
}

TEST(planned_requests, another_stream_waits_on_the_device_for_the_place_that_is_its_own_next) {
  planned_arena x{stream_reuse::device};
  const address low = x.take(mib, x.one);
  const address high = x.take(mib, x.one);
  x.give(low);
  x.give(high);
  EXPECT_EQ(x.take(mib, x.two), low);
  EXPECT_EQ(x.take(mib, x.two), high);
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
  EXPECT_EQ(x.tested.stats().plan_placements, 4U);
}

TEST(planned_requests, blocks_of_two_owners_are_united_behind_both) {
  planned_arena x{stream_reuse::device};
  const address low = x.take(mib, x.one);
  const address high = x.take(mib, x.one);
  ASSERT_TRUE(x.device.synchronize().ok());  // the program's order: work on `one`, then the free on `two`
  x.device.given_back(low);
  ASSERT_TRUE(x.tested.release_block(low, {.stream = x.two}).ok());
  x.give(high);
  EXPECT_EQ(x.take(mib, x.two), low);
  EXPECT_EQ(x.take(mib, x.two), high);
}

TEST(planned_requests, under_host_the_first_of_the_others_is_waited_for) {
  planned_arena x{stream_reuse::host};
  const address low = x.take(mib, x.one);
  x.take(mib, x.one);
  x.give(low);
  EXPECT_EQ(x.take(mib, x.two), low);
  EXPECT_GE(x.tested.stats().host_waits, 1U);
}

TEST(planned_requests, under_poll_a_promised_place_has_its_fence_by_the_time_it_is_asked_for) {
  planned_arena x{stream_reuse::poll};
  const address low = x.take(mib, x.one);
  x.give(low);
  x.take(mib, x.one);  // the first request behind the free records the fence
  x.device.advance_by(3'000'000);
  EXPECT_EQ(x.take(mib, x.two), low) << "its work is seen to be done";
  EXPECT_EQ(x.tested.stats().host_waits, 0U);
  EXPECT_GE(x.tested.stats().fences, 1U);
}

TEST(planned_requests, a_plan_of_another_program_is_said_to_be_one_and_its_memory_used) {
  planned_arena x{stream_reuse::device};
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  std::vector<address> blocks;
  for (unsigned k = 0; k < plan_cursor::lost_after + 1; ++k) blocks.push_back(x.take(512, x.one));
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines.front().find("of another program"), std::string::npos) << lines.front();
  EXPECT_EQ(x.tested.stats().plan_departures, plan_cursor::lost_after + 1);
  for (const address at : blocks) x.give(at);
}

TEST(planned_requests, without_room_beside_it_a_departure_is_let_into_the_plans_segment) {
  planned_arena x{stream_reuse::device};
  const address low = x.take(mib, x.one);
  x.tested.cap().set_limit(2 * mib);
  EXPECT_EQ(x.tested.take(512 * kib, x.one), low + mib);
  EXPECT_EQ(x.tested.take(mib, x.one), 0U) << "its place is taken, and there is nothing beside it";
}

TEST(planned_requests, no_segment_for_the_plan_is_a_departure_each) {
  planned_arena x{stream_reuse::device, 0};
  EXPECT_NE(x.take(mib, x.one), 0U);
  EXPECT_EQ(x.tested.stats().plan_placements, 0U);
  EXPECT_EQ(x.tested.stats().plan_departures, 1U);
}

}  // namespace
}  // namespace gpumem
