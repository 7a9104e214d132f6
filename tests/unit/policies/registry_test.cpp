#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "views.hpp"

namespace gpumem::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Takes exactly the need.
class exact final : public policy {
 public:
  segment_request grow(const pool_view&, std::uint64_t need_bytes) override {
    return {.bytes = need_bytes, .least_bytes = need_bytes};
  }
};

std::unique_ptr<policy> make_exact(const policy_setup&) { return std::make_unique<exact>(); }

TEST(PolicyRegistry, HoldsTheBuiltInPoliciesFromTheFirstUse) {
  std::vector<std::string> names;
  for (const policy_entry& e : known_policies()) names.push_back(e.name);
  names.resize(7);
  EXPECT_THAT(names, ::testing::ElementsAre("growth", "hard_cap", "multi_pool", "grab_all", "caching", "expandable",
                                            "planned"));
  for (const std::string& name : names) {
    EXPECT_NE(make(name), nullptr) << name;
    EXPECT_FALSE(find_policy(name)->summary.empty()) << name;
  }
}

TEST(PolicyRegistry, KnowsTheRecordingOfAPlanByNameAlone) {
  for (const char* name : {"planned:record", "planned:renew"}) {
    EXPECT_TRUE(find_policy(name)->needs.plan.records);
    EXPECT_NE(make(name), nullptr);
  }
  EXPECT_FALSE(find_policy("planned:record")->needs.plan.follows);
  EXPECT_TRUE(find_policy("planned:renew")->needs.plan.follows);
  for (const policy_entry& e : known_policies()) EXPECT_FALSE(e.needs.plan.records) << e.name;
}

TEST(PolicyRegistry, ReportsTheNeedsOfAPolicy) {
  EXPECT_TRUE(find_policy("hard_cap")->needs.limit);
  EXPECT_FALSE(find_policy("hard_cap")->needs.pools);
  EXPECT_TRUE(find_policy("multi_pool")->needs.pools);
  EXPECT_FALSE(find_policy("multi_pool")->needs.limit);
  EXPECT_TRUE(find_policy("grab_all")->needs.everything);
  for (const char* name : {"growth", "caching"}) {
    const auto entry = find_policy(name);
    EXPECT_FALSE(entry->needs.limit || entry->needs.pools || entry->needs.everything) << name;
  }
}

TEST(PolicyRegistry, RefusesAnUnknownNameWithTheKnownOnes) {
  for (const char* name : {"greedy", "", "Growth", "growth "}) {
    const auto found = find_policy(name);
    EXPECT_EQ(found.code(), errc::bad_setting);
    EXPECT_THAT(found.why().message(), StartsWith("policy '" + std::string{name} +
                                                  "' is unknown; expected one of growth, hard_cap, multi_pool, "));
    EXPECT_EQ(make_policy(name, {}).code(), errc::bad_setting);
  }
}

TEST(PolicyRegistry, MakesARegisteredPolicyByName) {
  ASSERT_TRUE(register_policy("exact", "what is needed", make_exact).ok());
  const auto entry = find_policy("exact");
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(entry->summary, "what is needed");
  EXPECT_FALSE(entry->needs.limit || entry->needs.pools || entry->needs.everything);
  const auto made = make("exact");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->grow(view_of(gib), 1234).bytes, 1234U);
  EXPECT_EQ(made->first(view_of(gib)).bytes, 0U);
  EXPECT_THAT(find_policy("nobody").why().message(), HasSubstr(", exact"));
}

TEST(PolicyRegistry, GivesTheFactoryItsSetup) {
  policy_setup seen;
  ASSERT_TRUE(register_policy("curious", "", [&seen](const policy_setup& setup) {
                seen = setup;
                return make_exact(setup);
              }).ok());
  ASSERT_TRUE(
      make_policy("curious", {.total_bytes = 7, .free_at_start_bytes = 6, .compute_major = 5, .granularity_bytes = 4})
          .ok());
  EXPECT_EQ(seen.total_bytes, 7U);
  EXPECT_EQ(seen.free_at_start_bytes, 6U);
  EXPECT_EQ(seen.compute_major, 5);
  EXPECT_EQ(seen.granularity_bytes, 4U);
}

TEST(PolicyRegistry, RefusesANameThatIsTaken) {
  ASSERT_TRUE(register_policy("mine", "first", make_exact).ok());
  const std::size_t before = known_policies().size();
  const status again = register_policy("mine", "second", make_exact);
  EXPECT_EQ(again.code(), errc::bad_setting);
  EXPECT_THAT(again.message(), HasSubstr("'mine'"));
  EXPECT_EQ(register_policy("growth", "mine now", make_exact).code(), errc::bad_setting);
  EXPECT_EQ(known_policies().size(), before);
  EXPECT_EQ(find_policy("mine")->summary, "first");
}

TEST(PolicyRegistry, RefusesANameThatNoSettingCouldHold) {
  for (const char* name : {"", "a b", "a,b", "a:b", "a+b", "a=b", "ä"}) {
    EXPECT_EQ(register_policy(name, "", make_exact).code(), errc::bad_setting) << name;
  }
}

TEST(PolicyRegistry, RefusesAPolicyWithoutAFactory) {
  EXPECT_EQ(register_policy("hollow", "", nullptr).code(), errc::bad_setting);
  EXPECT_FALSE(find_policy("hollow").ok());
}

TEST(PolicyRegistry, ReportsAFactoryThatFails) {
  ASSERT_TRUE(register_policy("none", "", [](const policy_setup&) { return std::unique_ptr<policy>{}; }).ok());
  ASSERT_TRUE(register_policy("thrower", "", [](const policy_setup&) -> std::unique_ptr<policy> {
                throw std::runtime_error{"no such\nluck"};
              }).ok());
  EXPECT_EQ(make_policy("none", {}).code(), errc::bad_setting);
  EXPECT_EQ(make_policy("thrower", {}).why().message(), "policy 'thrower' could not be made: no such\\x0aluck");
}

TEST(PolicyRegistry, AFactoryMayUseTheRegistry) {
  ASSERT_TRUE(register_policy("wrapper", "", [](const policy_setup& setup) {
                auto inner = make_policy("growth", setup);
                return std::move(*inner);
              }).ok());
  const auto made = make("wrapper");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->grow(view_of(gib), 512).bytes, 16 * mib);
}

TEST(PolicyRegistryThreads, OneOfManyRegistrationsOfANameWins) {
  constexpr int threads = 8;
  constexpr int names = 50;
  std::atomic<int> won{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      for (int n = 0; n < names; ++n) {
        const std::string name = "contested_" + std::to_string(n);
        if (register_policy(name, "", make_exact).ok()) ++won;
        EXPECT_TRUE(make_policy(name, {}).ok());
        EXPECT_TRUE(find_policy("growth").ok());
        EXPECT_GE(known_policies().size(), 5U);
      }
    });
  }
  for (std::thread& t : all) t.join();
  EXPECT_EQ(won, names);
  std::set<std::string> distinct;
  for (const policy_entry& e : known_policies()) EXPECT_TRUE(distinct.insert(e.name).second) << e.name;
}

}  // namespace
}  // namespace gpumem::test
