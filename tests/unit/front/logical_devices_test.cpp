#include "logical_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

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

std::string refusal_of_device_1(const environment& variables) {
  settings s;
  EXPECT_TRUE(s.apply(variables).ok());
  return refusal_of(s.for_device(1));
}

TEST(logical_devices, refusals_have_the_variable_and_its_value_as_they_were_set) {
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_POLICY", "nosuch"}}), StartsWith("GPUMEM_POLICY=nosuch: policy 'nosuch' "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_POLICY_1", "nosuch"}}), StartsWith("GPUMEM_POLICY_1=nosuch: policy "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_POLICY_1", "hard_cap"}}), StartsWith("GPUMEM_POLICY_1=hard_cap: needs "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_POLICY_1", "multi_pool"}}),
              StartsWith("GPUMEM_POLICY_1=multi_pool: needs "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_LIMIT_1", "0.5TiB"}}),
              StartsWith("GPUMEM_LIMIT_1=0.5TiB: expected at most "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_LIMIT_1", "1024K"}}),
              StartsWith("GPUMEM_LIMIT_1=1024K: 1.00 MiB are less than one segment; expected at least 2.00 MiB"));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_GROUP_LIMIT", "1024M"}}), StartsWith("GPUMEM_GROUP_LIMIT=1024M: needs "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_POOLS", "a:1024G"}}),
              StartsWith("GPUMEM_POOLS=a:1024G: pool a: expected at most what is there: device 0 "));
  EXPECT_THAT(refusal_of_device_1({{"GPUMEM_POOLS_1", "a:1G:nosuch"}}),
              StartsWith("GPUMEM_POOLS_1=a:1G:nosuch: policy "));
  EXPECT_EQ(refusal_of_device_1({{"GPUMEM_LIMIT_1", "10240M"}, {"GPUMEM_POOLS", "6G,5G"}}),
            "GPUMEM_POOLS=6G,5G: 6.00 GiB + 5.00 GiB = 11.00 GiB do not fit; expected at most 10.00 GiB "
            "(GPUMEM_LIMIT_1=10240M)");
  EXPECT_EQ(
      refusal_of_device_1({{"GPUMEM_POLICY", "grab_all"}, {"GPUMEM_RESERVE_1", "90G"}}),
      "GPUMEM_RESERVE_1=90G: leaves grab_all nothing of the 80.00 GiB that are free on device 0; expected to leave "
      "at least 2.00 MiB");
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
