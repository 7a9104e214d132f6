/// Rows from text: `settings::set` parses every setting, and the environment gives the defaults.
#include "policy_row.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/policy.hpp"

namespace gpumem::bench {
namespace {

policy_row good(std::string_view text, const settings& defaults = {}, std::string_view limit = "") {
  const auto row = parse_policy_row(text, defaults, limit);
  EXPECT_TRUE(row.ok()) << row.why().message();
  return *row;
}

std::string refused(std::string_view text) {
  const auto row = parse_policy_row(text, settings{}, "");
  EXPECT_EQ(row.code(), errc::bad_setting) << text;
  return row.why().message();
}

TEST(policy_row, takes_any_setting) {
  const policy_row row = good("caching,limit=4GiB,stream_reuse=host");
  EXPECT_EQ(row.text, "caching,limit=4GiB,stream_reuse=host");
  EXPECT_EQ(row.config.policy, "caching");
  EXPECT_EQ(row.config.limit.bytes, 4 * gib);
  EXPECT_EQ(row.config.reuse, stream_reuse::host);
  EXPECT_EQ(row.tenants, 1U);
  EXPECT_FALSE(row.takes_everything);
  EXPECT_TRUE(good("grab_all").takes_everything);
}

TEST(policy_row, has_a_tenant_for_each_pool_or_as_many_as_asked) {
  EXPECT_EQ(good("multi_pool,pools=2GiB+2GiB+4GiB").tenants, 3U);
  const policy_row shared = good("tenants=2");
  EXPECT_EQ(shared.tenants, 2U);
  EXPECT_EQ(shared.config.policy, "growth");
}

TEST(policy_row, refuses_in_one_line_that_names_the_row) {
  EXPECT_THAT(refused("nonsense"), testing::StartsWith("policy 'nonsense': policy 'nonsense' is unknown"));
  EXPECT_THAT(refused(""), testing::StartsWith("policy '': "));
  EXPECT_THAT(refused("growth,limit=0"), testing::HasSubstr("limit=0"));
  EXPECT_THAT(refused("growth,limit=-1GiB"), testing::HasSubstr("limit=-1GiB"));
  EXPECT_THAT(refused("growth,limit=nan"), testing::HasSubstr("nan"));
  EXPECT_THAT(refused("growth,limit=101%"), testing::HasSubstr("101%"));
  EXPECT_THAT(refused("growth,limit=4QB"), testing::HasSubstr("4QB"));
  EXPECT_THAT(refused("growth,speed=11"), testing::HasSubstr("unknown option"));
  EXPECT_THAT(refused("growth,limit=1GiB,limit=2GiB"), testing::HasSubstr("limit is named twice"));
  EXPECT_THAT(refused("limit=1GiB,growth"), testing::HasSubstr("'growth' has no '='"));
  EXPECT_THAT(refused("growth,trace=x"), testing::HasSubstr("trace has no meaning in a row of the bench"));
  for (const char* bad : {"0", "65", "-1", "two", "", "1.5"}) {
    EXPECT_THAT(refused("growth,tenants=" + std::string{bad}), testing::HasSubstr("expected a whole number")) << bad;
  }
  EXPECT_THAT(refused("multi_pool,pools=1GiB+1GiB,tenants=2"), testing::HasSubstr("exclude each other"));
}

TEST(policy_row, takes_the_common_limit_unless_it_names_its_own) {
  EXPECT_EQ(good("growth", {}, "1GiB").config.limit.bytes, 1 * gib);
  EXPECT_EQ(good("growth,limit=2GiB", {}, "1GiB").config.limit.bytes, 2 * gib);
  EXPECT_EQ(parse_policy_row("growth", {}, "0%").code(), errc::bad_setting);
}

TEST(policy_row, takes_its_defaults_from_the_environment) {
  const auto defaults = settings_from({{"GPUMEM_LIMIT", "3GiB"}, {"GPUMEM_TRACE", "/absent/x"}, {"HOME", "/"}});
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(good("caching", *defaults).config.limit.bytes, 3 * gib);
  EXPECT_TRUE(good("caching", *defaults).config.trace_path.empty()) << "replays write no trace";
  EXPECT_EQ(settings_from({{"GPUMEM_LIMIT", "-3"}}).code(), errc::bad_setting);
  EXPECT_EQ(settings_from({{"GPUMEM_NONSENSE", "1"}}).code(), errc::bad_setting) << "strict";
}

TEST(policy_row, has_every_policy_by_default) {
  const auto rows = default_rows({}, "", "50%");
  EXPECT_THAT(
      rows, testing::IsSupersetOf({"growth", "grab_all", "caching", "hard_cap,limit=50%", "multi_pool,pools=50%+50%"}));
  EXPECT_THAT(default_rows({}, "", "100%"), testing::Contains("hard_cap,limit=100%"));
  EXPECT_THAT(default_rows({}, "1GiB", "50%"), testing::Contains("hard_cap"));
  EXPECT_THAT(default_rows(*settings_from({{"GPUMEM_LIMIT", "1GiB"}}), "", "50%"), testing::Contains("hard_cap"));
  EXPECT_EQ(default_rows(*settings_from({{"GPUMEM_POLICY", "caching"}}), "", "50%"),
            std::vector<std::string>{"caching"});
}

TEST(policy_row, takes_a_policys_parameters_before_settings) {
  EXPECT_EQ(good("expandable:slack=5%").config.policy, "expandable:slack=5%");
  const policy_row row = good("expandable:slack=5%,limit=4GiB,tenants=2");
  EXPECT_EQ(row.config.policy, "expandable:slack=5%");
  EXPECT_EQ(row.config.limit.bytes, std::uint64_t{4} << 30);
  EXPECT_EQ(row.tenants, 2U);
  EXPECT_EQ(good("planned:renew,limit=4GiB").config.policy, "planned:renew");
  EXPECT_EQ(good("policy=expandable:slack=5%,limit=4GiB").config.policy, "expandable:slack=5%");
  ASSERT_TRUE(register_policy({.name = "two_parameters",
                               .summary = "",
                               .parameters = {{.name = "first", .values = "any"}, {.name = "second", .values = "any"}}},
                              [](const policy_setup&) { return std::move(*make_policy("growth", {})); })
                  .ok());
  EXPECT_EQ(good("two_parameters:first=1,second=2,limit=4GiB").config.policy, "two_parameters:first=1,second=2");
  EXPECT_EQ(parse_policy_row("expandable:slack=5%,limti=4GiB", {}, "").code(), errc::bad_setting);
}

}  // namespace
}  // namespace gpumem::bench
