/// The search for the smallest capacity, on traces whose result can be computed by hand.
#include <gtest/gtest.h>

#include "bits.hpp"
#include "measure.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

result<fit_figures> fit(std::string_view rows, std::string_view policy) {
  const auto row = parse_policy_row(policy, settings{}, "");
  EXPECT_TRUE(row.ok()) << row.why().message();
  const auto searched = fit_row(*row);
  EXPECT_TRUE(searched.ok()) << searched.why().message();
  return measure_fit(trace_of(rows), *searched, {});
}

TEST(fit, tries_capacities_a_quarter_of_a_percent_apart) {
  EXPECT_EQ(fit_capacity(400 * kib, 0), 400 * kib);
  EXPECT_EQ(fit_capacity(400 * kib, 1), 401 * kib);
  EXPECT_EQ(fit_capacity(400 * kib, 200), 600 * kib);
  EXPECT_EQ(fit_capacity(512, 200), 512U) << "rounded down to 512";
  EXPECT_EQ(fit_capacity(std::uint64_t{1} << 56, 200), (std::uint64_t{3} << 55)) << "no overflow";
}

TEST(fit, needs_no_more_than_the_peak_where_nothing_fragments) {
  const auto found =
      fit("1,00:00:00:000000,allocate,0xa0,1048576,0\n"
          "1,00:00:00:000000,allocate,0xb0,1048576,0\n"
          "1,00:00:00:000000,free,0xb0,1048576,0\n",
          "grab_all");
  ASSERT_TRUE(found.ok()) << found.why().message();
  EXPECT_EQ(found->min_capacity_bytes, 2 * mib);
  EXPECT_DOUBLE_EQ(*found->utilization(), 1.0);
}

/// A's hole is too small for C: 3 MiB live need 1 + 1 + 2 MiB.
TEST(fit, finds_the_first_step_that_is_enough) {
  const auto found =
      fit("1,00:00:00:000000,allocate,0xa0,1048576,0\n"
          "1,00:00:00:000000,allocate,0xb0,1048576,0\n"
          "1,00:00:00:000000,free,0xa0,1048576,0\n"
          "1,00:00:00:000000,allocate,0xc0,2097152,0\n",
          "grab_all");
  ASSERT_TRUE(found.ok()) << found.why().message();
  EXPECT_EQ(found->peak_live_bytes, 3 * mib);
  EXPECT_EQ(found->min_capacity_bytes, fit_capacity(3 * mib, 134));
  EXPECT_GE(fit_capacity(3 * mib, 134), 4 * mib);
  EXPECT_LT(fit_capacity(3 * mib, 133), 4 * mib);
}

TEST(fit, tells_when_it_first_fails_as_capacity_shrinks) {
  // Four times 1 MiB: each quarter less of capacity fails one operation earlier.
  std::string rows;
  for (int i = 1; i <= 4; ++i) rows += "1,00:00:00:000000,allocate,0x" + std::to_string(i) + "0,1048576,0\n";
  const trace t = trace_of(rows);
  const auto row = parse_policy_row("growth", settings{}, "");
  const auto found = measure_fit(t, *fit_row(*row), {});
  ASSERT_TRUE(found.ok()) << found.why().message();
  ASSERT_EQ(found->failures.size(), shrinking_percents.size());
  for (const first_failure& each : found->failures) {
    EXPECT_EQ(each.capacity_bytes, 4 * mib * each.percent_of_peak / 100 / 512 * 512);
    if (each.capacity_bytes >= 4 * mib) {
      EXPECT_FALSE(each.at_op.has_value()) << each.percent_of_peak;
    } else {
      EXPECT_EQ(each.at_op, each.capacity_bytes / mib) << each.percent_of_peak;
    }
  }
}

TEST(fit, says_so_when_nothing_it_tries_is_enough) {
  const auto found =
      fit("1,00:00:00:000000,allocate,0xa0,1048576,0\n"
          "1,00:00:00:000000,allocate,0xb0,512,0\n"
          "1,00:00:00:000000,free,0xa0,1048576,0\n"
          "1,00:00:00:000000,allocate,0xc0,1049088,0\n",
          "grab_all");
  ASSERT_TRUE(found.ok()) << found.why().message();
  EXPECT_FALSE(found->min_capacity_bytes.has_value());
  EXPECT_FALSE(found->utilization().has_value());
}

TEST(fit, takes_shares_but_no_bytes) {
  for (const std::string_view text : {"growth,limit=4GiB", "multi_pool,pools=1GiB+50%"}) {
    EXPECT_EQ(fit_row(*parse_policy_row(text, settings{}, "")).code(), errc::bad_setting) << text;
  }
  const auto row = fit_row(*parse_policy_row("grab_all,limit=100%,verbose=1", settings{}, ""));
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row->config.reserve_bytes, 0U) << "pool bytes only";
}

TEST(fit, gives_the_same_answer_for_every_growing_policy_that_must_fit_too) {
  for (const std::string_view policy : {"growth", "caching", "multi_pool,pools=50%+50%"}) {
    const auto found = fit("1,00:00:00:000000,allocate,0xa0,1048576,0\n", policy);
    ASSERT_TRUE(found.ok()) << found.why().message();
    ASSERT_TRUE(found->min_capacity_bytes.has_value()) << policy;
    EXPECT_EQ(*found->min_capacity_bytes, found->peak_live_bytes) << policy;
  }
}

}  // namespace
}  // namespace gpumem::bench
