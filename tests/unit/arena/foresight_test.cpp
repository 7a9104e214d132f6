// What an arena does for a place that lookahead names; how well it chooses is tested in tests/unit/pool/foresight_test.
#include <gtest/gtest.h>

#include <random>

#include "lone_arena.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;

/// Makes new pages up to the most that was live, one by one.
struct no_slack final : policy {
  explicit no_slack(bool ahead) : looks_ahead{ahead} {}
  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    return {.range_bytes = 4 * view.total_bytes, .lowest_fit_bytes = 16 * mib, .looks_ahead = looks_ahead};
  }
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t need, std::uint64_t missing) const override {
    const std::uint64_t peak = round_up(std::max(view.peak_live_bytes, view.live_bytes + need), page);
    const std::uint64_t room = peak > view.reserved_bytes ? peak - view.reserved_bytes : 0;
    return {.make_bytes = std::min(room, missing), .run_bytes = page};
  }
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
  bool looks_ahead;
};

/// Pages of each request of a step, and so many requests later its block is freed.
using made_up_step = std::vector<std::pair<std::uint64_t, unsigned>>;

/// Repeats the step. How many pages move in ten steps after twenty.
std::uint64_t moved_late(const made_up_step& step, bool ahead, device_call fails = device_call::map,
                         std::uint64_t nth = 0) {
  sim_device device;
  lone_arena tested{device, {}, std::make_unique<no_slack>(ahead)};
  if (nth != 0) device.fail_nth(fails, nth, errc::device_error);
  const stream_ref other = device.create_stream();
  std::multimap<unsigned, address> ends;
  unsigned requests = 0;
  std::uint64_t before = 0;
  for (unsigned k = 0; k < 30; ++k) {
    if (k == 20) before = tested.stats().remapped_pages;
    for (const auto& [pages, life] : step) {
      device.advance_by(100'000);
      ++requests;
      for (auto [it, end] = ends.equal_range(requests); it != end; it = ends.erase(it)) {
        device.given_back(it->second);
        tested.give(it->second);
      }
      const stream_ref s = pages % 8 == 4 ? other : stream_ref{};
      const address at = tested.take(pages * page, s);
      if (at == 0) continue;  // the call that fails
      device.handed_out(at, pages * page, s);
      device.enqueue_use(s, 1'000'000, at, pages * page);
      ends.emplace(requests + life, at);
    }
  }
  EXPECT_TRUE(tested.check().ok()) << tested.check().message();
  EXPECT_EQ(device.hazard_count(), 0U);
  return tested.stats().remapped_pages - before;
}

TEST(arena_foresight, a_step_that_repeats_comes_to_move_no_page) {
  EXPECT_EQ(moved_late({{16, 3}, {24, 2}, {32, 4}, {8, 1}, {24, 5}}, true), 0U);
}

TEST(arena_foresight, made_up_steps_move_half_as_many_pages_as_without) {
  std::uint64_t with = 0;
  std::uint64_t without = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::minstd_rand random{seed};
    made_up_step step(5 + random() % 6);
    for (auto& [pages, life] : step) {
      pages = 8 + random() % 33;
      life = static_cast<unsigned>(1 + random() % 5);
    }
    with += moved_late(step, true);
    without += moved_late(step, false);
  }
  EXPECT_GT(without, 0U);
  EXPECT_LE(2 * with, without) << with;
}

TEST(arena_foresight, several_streams_and_a_device_that_fails_leave_the_arena_whole) {
  for (const std::uint64_t nth : {0U, 3U, 30U, 60U}) {
    static_cast<void>(moved_late({{20, 3}, {24, 2}, {28, 4}, {12, 1}, {16, 5}, {20, 7}}, true, device_call::map, nth));
  }
}

}  // namespace
}  // namespace gpumem
