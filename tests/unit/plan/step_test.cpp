#include "step.hpp"

#include <gtest/gtest.h>

#include "validate.hpp"

namespace gpumem::plan {
namespace {

/// Two weights, then `steps` times: three activations and a gradient, which lives until the next step has begun.
std::vector<recorded_op> training(unsigned steps) {
  std::vector<recorded_op> ops{{.bytes = 5000, .block = 0}, {.bytes = 7000, .block = 1}};
  for (unsigned k = 0; k < steps; ++k) {
    for (std::uint32_t b = 2; b < 5; ++b) ops.push_back({.bytes = b * 1000, .block = b});
    if (k != 0) ops.push_back({.block = 5, .free = true});
    for (std::uint32_t b = 5; b-- > 3;) ops.push_back({.block = b, .free = true});
    ops.push_back({.bytes = 6000, .block = 5, .stream = 1});
    ops.push_back({.block = 2, .free = true});
  }
  return ops;
}

TEST(period_of, finds_the_shortest_that_holds_for_half_of_the_sequence) {
  EXPECT_EQ(period_of({9, 9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3}), 3U);
  EXPECT_EQ(period_of({1, 2, 3, 1, 2, 3, 1}), 3U);
  EXPECT_EQ(period_of({1, 1, 2, 1, 1, 2}), 3U);
  EXPECT_EQ(period_of({1, 2, 3, 4, 5, 6, 6}), std::nullopt);
  EXPECT_EQ(period_of({1}), std::nullopt);
  EXPECT_EQ(period_of({}), std::nullopt);
}

TEST(step_of, keeps_the_prologue_and_one_period) {
  const auto found = step_of(training(6));
  ASSERT_TRUE(found) << found.why().message();
  EXPECT_EQ(found->allocations.size() - found->repeat_from, 4U);
  EXPECT_LT(found->allocations.size(), 2U + 6U * 4U);
  EXPECT_GE(found->repeat_from, 2U);
  EXPECT_EQ(found->allocations[0].bytes, 5120U);
  EXPECT_EQ(found->allocations[1].bytes, 7168U);
}

TEST(step_of, takes_all_of_what_does_not_repeat) {
  const auto found = step_of(training(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->repeat_from, 0U);
  EXPECT_EQ(found->allocations.size(), 6U);
}

TEST(step_of, begins_the_period_where_nothing_is_kept_that_need_not_be) {
  const auto found = step_of(training(6));
  ASSERT_TRUE(found);
  EXPECT_LT(found->allocations.size(), 2U + 6U * 4U);
  EXPECT_EQ(peak_load(found->buffers).bytes, peak_load(step_of(training(1))->buffers).bytes + 6144);
}

TEST(step_of, joins_periods_for_buffers_that_take_turns) {
  std::vector<recorded_op> turns{
      {.bytes = 5000, .block = 0}, {.bytes = 90000, .block = 99}, {.block = 99, .free = true}};
  for (std::uint32_t k = 1; k < 12; ++k) {
    turns.push_back({.bytes = 9000, .block = k});
    if (k > 1) turns.push_back({.block = k - 1, .free = true});
  }
  const auto found = step_of(turns);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->allocations.size() - found->repeat_from, 2U);
  const std::size_t end = found->buffers.size();
  // The second is freed after the first is allocated again: it keeps its place throughout the step.
  EXPECT_EQ(found->buffers[end - 1].lower, found->buffers[end - 2].lower);
  EXPECT_GT(found->buffers[end - 1].upper, found->buffers[end - 2].upper);
}

TEST(step_of, takes_all_of_a_recording_whose_step_would_need_more_than_its_peak) {
  std::vector<recorded_op> turns{{.bytes = 5000, .block = 0}};
  for (std::uint32_t k = 1; k < 12; ++k) {  // one of two is live at any time, and each outlives its step
    turns.push_back({.bytes = k % 2 == 0 ? 9000U : 8000U, .block = k});
    if (k > 1) turns.push_back({.block = k - 1, .free = true});
    turns.push_back({.bytes = 20000, .block = 100});
    turns.push_back({.block = 100, .free = true});
  }
  const auto whole = step_of(turns);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->allocations.size(), 23U);
  EXPECT_EQ(whole->repeat_from, 19U);
}

TEST(step_of, refuses_what_is_no_recording) {
  EXPECT_EQ(step_of({}).why().message(), "nothing is allocated, expected at least one allocation");
  EXPECT_EQ(step_of({{.block = 3, .free = true}}).why().message(), "operation 0: block 3 is freed and not live");
  EXPECT_EQ(step_of({{.bytes = 1, .block = 3}, {.bytes = 1, .block = 3}}).code(), errc::invalid_argument);
  EXPECT_EQ(step_of({{.bytes = 0, .block = 3}}).code(), errc::invalid_argument);
}

TEST(make_plan, places_the_step) {
  solution solved;
  const auto made = make_plan(training(6), {}, &solved);
  ASSERT_TRUE(made) << made.why().message();
  const auto found = step_of(training(6));
  ASSERT_TRUE(found);
  placement at;
  for (const planned_allocation& each : made->allocations) at.push_back(each.offset);
  EXPECT_EQ(at, solved.offsets);
  const status ok = validate(found->buffers, at, made->height_bytes);
  EXPECT_TRUE(ok) << ok.message();
  EXPECT_EQ(made->height_bytes, made->lower_bound_bytes);
}

/// On stream 0, 10,000 bytes permanently and 1,000 for a while, then 1,000 on stream 1 for a while.
std::vector<recorded_op> one_after_another(std::uint64_t first_bytes) {
  return {{.bytes = first_bytes, .block = 0},       {.bytes = 1000, .block = 1}, {.block = 1, .free = true},
          {.bytes = 1000, .block = 2, .stream = 1}, {.block = 2, .free = true},  {.block = 0, .free = true}};
}

TEST(make_plan, gives_streams_offsets_of_their_own_under_poll) {
  const auto apart = make_plan(one_after_another(10'000), {});
  ASSERT_TRUE(apart) << apart.why().message();
  EXPECT_EQ(apart->height_bytes, 10'240U + 1024 + 1024);
  EXPECT_EQ(apart->lower_bound_bytes, 10'240U + 1024);
  EXPECT_EQ(changes_stream(*apart), (std::vector<bool>{false, false, false}));

  const auto shared = make_plan(one_after_another(10'000), {}, nullptr, stream_reuse::device);
  ASSERT_TRUE(shared) << shared.why().message();
  EXPECT_EQ(shared->height_bytes, 10'240U + 1024);
  EXPECT_EQ(changes_stream(*shared), (std::vector<bool>{false, true, true}));
}

TEST(make_plan, shares_offsets_between_streams_where_it_saves_more_than_a_fifth_or_a_capacity_asks_for_it) {
  const auto much = make_plan(one_after_another(2'000), {});
  ASSERT_TRUE(much) << much.why().message();
  EXPECT_EQ(much->height_bytes, 2'048U + 1024);
  const auto within = make_plan(one_after_another(10'000), {.capacity = 10'240 + 1024});
  ASSERT_TRUE(within) << within.why().message();
  EXPECT_EQ(within->height_bytes, 10'240U + 1024);
}

TEST(changes_stream, sees_parts_of_a_block_and_the_step_that_comes_round_again) {
  step_plan of;
  of.allocations = {{.bytes = 512, .offset = 0, .stream = 1},       // once; its memory goes to stream 0
                    {.bytes = 2048, .offset = 0, .stream = 0},      // all of it again to stream 0, but for the middle
                    {.bytes = 512, .offset = 512, .stream = 2},     // goes to stream 0 when the step comes again
                    {.bytes = 1024, .offset = 2048, .stream = 0}};  // to itself
  of.repeat_from = 1;
  EXPECT_EQ(changes_stream(of), (std::vector<bool>{true, true, true, false}));
}

TEST(fingerprint, tells_sizes_streams_order_and_repetition_apart) {
  const std::vector<planned_allocation> some{{.bytes = 512}, {.bytes = 1024, .stream = 1}};
  const std::uint64_t print = fingerprint(some, 0);
  EXPECT_NE(print, fingerprint(some, 1));
  EXPECT_NE(print, fingerprint({some[1], some[0]}, 0));
  EXPECT_NE(print, fingerprint({{.bytes = 512}, {.bytes = 1024}}, 0));
  EXPECT_EQ(print, fingerprint({{.bytes = 512, .offset = 512}, {.bytes = 1024, .stream = 1}}, 0));
}

}  // namespace
}  // namespace gpumem::plan
