#include "remap_batch.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
using outcome = remap_batch::outcome;

/// A range of 8 pages. The first two are mapped, as two runs.
struct two_runs {
  sim_device device;
  address range = 0;
  std::vector<mapped_run> runs;
  two_runs() {
    range = *device.reserve(8 * page);
    remap_batch first;
    first.pieces = {{range, 2 * page}};
    first.runs = {made(range), made(range + page)};
    EXPECT_TRUE(execute(device, first).ok());
    EXPECT_EQ(first.made_bytes, 2 * page);
    for (const remap_batch::run& r : first.runs) {
      EXPECT_EQ(r.state, outcome::arrived);
      runs.push_back({r.target, r.source.bytes, r.source.pages});
    }
  }
  static remap_batch::run made(address to) {
    return {.source = {.begin = 0, .bytes = page, .pages = {}}, .target = to};
  }
  /// Moves both to pages 4 and 5, and creates one for page 6.
  [[nodiscard]] remap_batch moving() const {
    remap_batch s;
    s.pieces = {{range + 4 * page, 3 * page}};
    s.runs = {{.source = runs[0], .target = range + 4 * page, .moves = true},
              {.source = runs[1], .target = range + 5 * page, .moves = true},
              made(range + 6 * page)};
    s.new_bytes = page;
    return s;
  }
};

TEST(page_step, runs_are_made_moved_and_mapped) {
  two_runs x;
  remap_batch s = x.moving();
  ASSERT_TRUE(execute(x.device, s).ok());
  for (const remap_batch::run& r : s.runs) EXPECT_EQ(r.state, outcome::arrived);
  EXPECT_EQ(s.made_bytes, page);
  EXPECT_EQ(x.device.used_bytes(), 3 * page);
  EXPECT_EQ(x.device.live_mappings(), 3U);
}

TEST(page_step, a_run_that_stays_mapped_is_mapped_at_both_places) {
  two_runs x;
  remap_batch s = x.moving();
  s.runs[1].stays_mapped = true;
  ASSERT_TRUE(execute(x.device, s).ok());
  for (const remap_batch::run& r : s.runs) EXPECT_EQ(r.state, outcome::arrived);
  EXPECT_EQ(x.device.used_bytes(), 3 * page);
  EXPECT_EQ(x.device.live_mappings(), 4U);
  EXPECT_FALSE(x.device.unmap(x.range, page)) << "the first run has left";
  EXPECT_TRUE(x.device.unmap(x.range + page, page));
}

TEST(page_step, a_device_that_is_full_changes_nothing) {
  two_runs x;
  x.device.fail_nth(device_call::create, 1, errc::out_of_memory);
  remap_batch s = x.moving();
  EXPECT_EQ(execute(x.device, s).code(), errc::out_of_memory);
  for (const remap_batch::run& r : s.runs) EXPECT_EQ(r.state, outcome::untouched);
  EXPECT_EQ(s.refused_bytes, page);
  EXPECT_EQ(x.device.used_bytes(), 2 * page);
  EXPECT_EQ(x.device.live_mappings(), 2U);
}

TEST(page_step, what_was_made_before_the_refusal_is_given_back) {
  two_runs x;
  x.device.fail_nth(device_call::create, 2, errc::out_of_memory);
  remap_batch s;
  s.pieces = {{x.range + 4 * page, 2 * page}};
  s.runs = {two_runs::made(x.range + 4 * page), two_runs::made(x.range + 5 * page)};
  EXPECT_EQ(execute(x.device, s).code(), errc::out_of_memory);
  EXPECT_EQ(s.made_bytes, page);
  EXPECT_EQ(x.device.used_bytes(), 2 * page);
}

class failing_step : public testing::TestWithParam<std::pair<device_call, unsigned>> {};

TEST_P(failing_step, says_of_every_run_what_became_of_it) {
  for (const bool stays_mapped : {false, true}) {
    two_runs x;
    const auto [call, nth] = GetParam();
    x.device.fail_nth(call, nth);
    remap_batch s = x.moving();
    s.runs[1].stays_mapped = stays_mapped;
    ASSERT_FALSE(execute(x.device, s).ok());
    std::uint64_t held = 0;
    for (const remap_batch::run& r : s.runs) {
      EXPECT_NE(r.state, outcome::arrived);
      if (r.state == outcome::lost || (r.moves && r.state == outcome::untouched)) held += r.source.bytes;
    }
    EXPECT_EQ(x.device.used_bytes(), held) << "lost is what the device still has, and nothing else";
    EXPECT_EQ(stays_mapped && s.runs[1].state != outcome::untouched, false);
  }
}

TEST(page_step, a_run_that_cannot_leave_its_new_addresses_is_lost) {
  two_runs x;
  remap_batch s = x.moving();
  for (std::size_t k = 0; k < 2; ++k) s.runs[k].stays_mapped = true;
  x.device.fail_nth(device_call::set_access, 1);
  x.device.fail_nth(device_call::unmap, 1);
  ASSERT_FALSE(execute(x.device, s).ok());
  EXPECT_EQ(s.runs[0].state, outcome::lost);
  EXPECT_EQ(s.runs[1].state, outcome::untouched);
}
INSTANTIATE_TEST_SUITE_P(calls, failing_step,
                         testing::Values(std::pair{device_call::create, 1U}, std::pair{device_call::unmap, 1U},
                                         std::pair{device_call::map, 1U}, std::pair{device_call::map, 2U},
                                         std::pair{device_call::map, 3U}, std::pair{device_call::set_access, 1U}));

TEST(page_step, that_fails_while_nothing_may_be_unmapped_keeps_what_is_mapped) {
  for (const auto& [call, nth] : {std::pair{device_call::map, 2U}, std::pair{device_call::set_access, 1U}}) {
    two_runs x;
    remap_batch s;
    s.may_unmap = false;
    s.pieces = {{x.range + 4 * page, 2 * page}};
    s.runs = {two_runs::made(x.range + 4 * page), two_runs::made(x.range + 5 * page)};
    x.device.fail_nth(call, nth);
    x.device.fail_nth(device_call::set_access, 2);  // of the first run, or of the second one
    ASSERT_FALSE(execute(x.device, s).ok());
    EXPECT_EQ(x.device.calls()[static_cast<std::size_t>(device_call::unmap)], 0U);
    std::vector<outcome> expected{outcome::arrived, outcome::destroyed};
    if (call == device_call::set_access) expected = {outcome::stranded, outcome::arrived};
    EXPECT_EQ((std::vector{s.runs[0].state, s.runs[1].state}), expected);
    EXPECT_EQ(x.device.used_bytes(), (call == device_call::map ? 3 : 4) * page);
  }
}

TEST(page_step, runs_go_back_to_the_device_and_the_first_error_is_told) {
  two_runs x;
  EXPECT_TRUE(return_runs(x.device, {}).why.ok());
  EXPECT_TRUE(return_runs(x.device, x.runs).why.ok());
  EXPECT_EQ(x.device.used_bytes(), 0U);
  two_runs y;
  y.device.fail_nth(device_call::destroy, 1);
  const returned_runs half = return_runs(y.device, y.runs);
  EXPECT_FALSE(half.why.ok());
  EXPECT_TRUE(half.unmapped);
  EXPECT_EQ(half.destroyed, page) << "the second one went";
  EXPECT_EQ(y.device.used_bytes(), page);
  two_runs z;
  z.device.fail_nth(device_call::unmap, 1);
  EXPECT_FALSE(return_runs(z.device, z.runs).unmapped);
  EXPECT_EQ(z.device.used_bytes(), 2 * page);
}

}  // namespace
}  // namespace gpumem
