#include "logical_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

settings with(std::initializer_list<std::pair<const char*, const char*>> options) {
  settings s;
  for (const auto& [name, value] : options) EXPECT_TRUE(s.set(name, value).ok()) << name << "=" << value;
  return s;
}

std::uint64_t limit_of(const settings& s, std::uint64_t foreign_bytes = 0) {
  sim_config c;
  c.foreign_bytes = foreign_bytes;
  sim_device d{c};
  const auto pools = logical_devices(d, s, 0);
  EXPECT_TRUE(pools.ok()) << pools.why().message();
  return pools.ok() ? pools->front().limit_bytes : 0;
}

std::string refusal_of(const settings& s) {
  sim_device d;
  const auto pools = logical_devices(d, s, 0);
  EXPECT_EQ(pools.code(), errc::bad_setting);
  return pools.why().message();
}

TEST(logical_devices, limits_in_bytes_of_total_and_of_what_is_free) {
  EXPECT_EQ(limit_of({}), 80 * gib);
  EXPECT_EQ(limit_of(with({{"limit", "4GiB"}})), 4 * gib);
  EXPECT_EQ(limit_of(with({{"limit", "25%"}})), 20 * gib);
  EXPECT_EQ(limit_of(with({{"limit", "50%free"}}), 40 * gib), 20 * gib);
}

TEST(logical_devices, grab_all_leaves_the_reserve_unless_a_limit_says_otherwise) {
  EXPECT_EQ(limit_of(with({{"policy", "grab_all"}})), 80 * gib - default_reserve_bytes(80 * gib, 9));
  EXPECT_EQ(limit_of(with({{"policy", "grab_all"}}), 79 * gib), gib - default_reserve_bytes(gib, 9));
  EXPECT_EQ(limit_of(with({{"policy", "grab_all"}, {"reserve", "1GiB"}})), 79 * gib);
  EXPECT_EQ(limit_of(with({{"policy", "grab_all"}, {"reserve", "1GiB"}, {"limit", "100%"}})), 80 * gib);
  EXPECT_EQ(limit_of(with({{"policy", "growth"}, {"reserve", "1GiB"}})), 80 * gib);
}

TEST(logical_devices, pools_have_names_limits_and_policies_of_their_own) {
  sim_device d;
  const auto good = logical_devices(d, with({{"limit", "40GiB"}, {"pools", "train:8GiB,50%,eval:25%:caching"}}), 3);
  ASSERT_TRUE(good.ok()) << good.why().message();
  ASSERT_EQ(good->size(), 3U);
  EXPECT_EQ((*good)[0].name, "train");
  EXPECT_EQ((*good)[1].name, "4");
  EXPECT_EQ((*good)[0].ordinal, 3);
  EXPECT_EQ((*good)[0].limit_bytes, 8 * gib);
  EXPECT_EQ((*good)[1].limit_bytes, 20 * gib) << "a share is of the limit";
  EXPECT_EQ((*good)[2].limit_bytes, 10 * gib);
  EXPECT_EQ((*good)[2].policy_name, "caching");
  EXPECT_EQ((*good)[0].policy_name, "growth");
}

TEST(logical_devices, refusals_name_the_setting_its_value_and_the_figures) {
  EXPECT_THAT(refusal_of(with({{"policy", "frugal"}})), HasSubstr("frugal"));
  EXPECT_THAT(refusal_of(with({{"policy", "hard_cap"}})), HasSubstr("needs GPUMEM_LIMIT"));
  EXPECT_THAT(refusal_of(with({{"policy", "multi_pool"}})), HasSubstr("needs GPUMEM_POOLS"));
  EXPECT_THAT(refusal_of(with({{"limit", "81GiB"}})), HasSubstr("80.00 GiB"));
  EXPECT_THAT(refusal_of(with({{"limit", "1MiB"}})), HasSubstr("2.00 MiB"));
  EXPECT_THAT(refusal_of(with({{"policy", "grab_all"}, {"reserve", "80GiB"}})), HasSubstr("GPUMEM_RESERVE"));
  const std::string sum = refusal_of(with({{"pools", "50GiB,40GiB"}}));
  EXPECT_THAT(sum, HasSubstr("50.00 GiB + 40.00 GiB = 90.00 GiB"));
  EXPECT_THAT(sum, HasSubstr("80.00 GiB"));
  EXPECT_THAT(refusal_of(with({{"limit", "10GiB"}, {"pools", "6GiB,5GiB"}})), HasSubstr("GPUMEM_LIMIT"));
  EXPECT_THAT(refusal_of(with({{"pools", "1GiB,x:1GiB:frugal"}})), HasSubstr("frugal"));
}

TEST(logical_devices, a_setting_is_another_way_to_give_a_policys_parameter) {
  const auto slack = [](const settings& s) {
    const auto given = parameters_from_settings(*find_policy(s.policy), s, s.policy);
    const auto found = given.find("slack");
    return found == given.end() ? std::string{"as named"} : found->second;
  };
  EXPECT_EQ(slack(with({{"policy", "expandable"}})), "as named");
  EXPECT_EQ(slack(with({{"policy", "expandable"}, {"slack", "5%"}})), "5%");
  EXPECT_EQ(slack(with({{"policy", "growth"}, {"slack", "5%"}})), "as named") << "growth has no such parameter";
  EXPECT_EQ(slack(with({{"policy", "expandable:slack=1%"}, {"slack", "5%"}})), "as named") << "the policy is nearer";
  settings code = with({{"policy", "expandable:slack=1%"}});
  ASSERT_TRUE(code.apply({{"GPUMEM_SLACK", "7%"}}).ok());
  EXPECT_EQ(slack(code), "7%") << "the environment wins over code";
  settings both;
  ASSERT_TRUE(both.apply({{"GPUMEM_POLICY", "expandable:slack=1%"}, {"GPUMEM_SLACK", "7%"}}).ok());
  EXPECT_EQ(slack(both), "as named");
}

}  // namespace
}  // namespace gpumem
