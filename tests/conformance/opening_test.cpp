/// Opening an allocator: which settings are refused, with which figures, and what policies take at first use.
#include <gmock/gmock.h>

#include <array>

#include "gpumem/policy.hpp"
#include "log.hpp"
#include "setup.hpp"

namespace gpumem::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct option {
  const char* name;
  const char* value;
};

class Opening : public ::testing::Test {
 protected:
  static sim_config card(std::uint64_t capacity_bytes) { return {.capacity_bytes = capacity_bytes}; }

  result<std::unique_ptr<allocator>> open(std::initializer_list<option> options) {
    settings s;
    for (const option& o : options) {
      const status ok = s.set(o.name, o.value);
      EXPECT_TRUE(ok.ok()) << ok.message();
    }
    const std::array<device*, 1> devices{&device_};
    return allocator::open(devices, s);
  }
  std::string refusal(std::initializer_list<option> options) {
    const auto opened = open(options);
    EXPECT_EQ(opened.code(), errc::bad_setting);
    EXPECT_EQ(opened.why().message().find('\n'), std::string::npos);
    EXPECT_EQ(device_.used_bytes(), 0U);
    return opened.why().message();
  }

  sim_device device_{card(4 * gib)};
};

TEST_F(Opening, WithoutADeviceIsRefused) { EXPECT_EQ(allocator::open({}, settings{}).code(), errc::bad_setting); }

TEST_F(Opening, AnUnknownPolicyIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(refusal({{"policy", "greedy"}}), AllOf(HasSubstr("'greedy'"), HasSubstr("expected one of growth, ")));
  EXPECT_THAT(refusal({{"pools", "a:1GiB:greedy"}}), HasSubstr("'greedy'"));
}

TEST_F(Opening, ASettingThatAPolicyNeedsIsAskedFor) {
  EXPECT_THAT(refusal({{"policy", "hard_cap"}}), HasSubstr("GPUMEM_LIMIT"));
  EXPECT_THAT(refusal({{"policy", "multi_pool"}}), HasSubstr("GPUMEM_POOLS"));
}

TEST_F(Opening, ALimitAboveTheDeviceIsRefusedWithTheFigures) {
  EXPECT_THAT(refusal({{"limit", "5GiB"}}), AllOf(HasSubstr("GPUMEM_LIMIT=5GiB"), HasSubstr("4.00 GiB")));
}

TEST_F(Opening, PoolsThatDoNotFitAreRefusedWithTheFigures) {
  EXPECT_THAT(refusal({{"pools", "3GiB,2GiB"}}), AllOf(HasSubstr("5.00 GiB"), HasSubstr("4.00 GiB")));
  EXPECT_THAT(refusal({{"pools", "60%,60%"}}), HasSubstr("4.00 GiB"));
  EXPECT_THAT(refusal({{"limit", "1GiB"}, {"pools", "800MiB,800MiB"}}),
              AllOf(HasSubstr("1.56 GiB"), HasSubstr("1.00 GiB")));
  EXPECT_TRUE(open({{"pools", "2GiB,2GiB"}}).ok()) << "exactly the device";
  EXPECT_TRUE(open({{"limit", "1GiB"}, {"pools", "50%,50%"}}).ok()) << "exactly the limit";
}

TEST_F(Opening, LimitsAreSharesOfTotalOrFreeMemory) {
  device_.set_foreign_bytes(gib);
  const auto limit_of = [&](const char* limit) { return (*open({{"limit", limit}}))->devices().front().limit_bytes; };
  EXPECT_EQ(limit_of("1GiB"), gib);
  EXPECT_EQ(limit_of("25%"), gib);
  EXPECT_EQ(limit_of("50%free"), gib + gib / 2);
  EXPECT_EQ(limit_of("123456789"), 123456789U);
}

TEST_F(Opening, AShareOfAPoolIsOfTheLimitWhereOneIsSet) {
  const auto capped = open({{"limit", "1GiB"}, {"pools", "25%,b:512MiB"}});
  ASSERT_TRUE(capped.ok()) << capped.why().message();
  EXPECT_EQ((*capped)->devices()[0].limit_bytes, 256 * mib);
  EXPECT_EQ((*capped)->devices()[1].limit_bytes, 512 * mib);
  const auto free = open({{"pools", "25%,b:512MiB"}});
  EXPECT_EQ((*free)->devices()[0].limit_bytes, gib);
}

TEST_F(Opening, PoolsHaveNamesOrdinalsAndPoliciesOfTheirOwn) {
  const auto opened = open({{"policy", "growth"}, {"pools", "train:1GiB:grab_all,512MiB,eval:25%:caching"}});
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  const std::vector<logical_device>& pools = (*opened)->devices();
  ASSERT_EQ(pools.size(), 3U);
  EXPECT_EQ(pools[0].name, "train");
  EXPECT_EQ(pools[1].name, "1");
  EXPECT_EQ(pools[2].name, "eval");
  EXPECT_EQ(pools[0].policy, "grab_all");
  EXPECT_EQ(pools[1].policy, "growth");
  EXPECT_EQ(pools[2].policy, "caching");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pools[static_cast<std::size_t>(i)].ordinal, i);
    EXPECT_EQ(pools[static_cast<std::size_t>(i)].physical_ordinal, 0);
    ASSERT_TRUE((*opened)->try_allocate({.bytes = 3 * mib, .device = i}).ok());
  }
  EXPECT_EQ((*opened)->stats(0)->reserved_bytes, gib);
  EXPECT_GE((*opened)->stats(1)->reserved_bytes, 4 * mib);
  EXPECT_LE((*opened)->stats(1)->reserved_bytes, 64 * mib);
  EXPECT_EQ((*opened)->stats(2)->reserved_bytes, 20 * mib);
}

TEST_F(Opening, OnePoolDoesNotTakeFromAnother) {
  const auto opened = open({{"pools", "1GiB,1GiB"}});
  ASSERT_TRUE(opened.ok());
  std::vector<void*> all;
  while (true) {
    const auto got = (*opened)->try_allocate({.bytes = 2 * mib, .device = 0});
    if (!got) break;
    all.push_back(*got);
  }
  EXPECT_EQ(all.size(), 512U) << "growth works inside a capped pool";
  EXPECT_EQ((*opened)->stats(1)->reserved_bytes, 0U);
  EXPECT_TRUE((*opened)->try_allocate({.bytes = 64 * mib, .device = 1}).ok());
}

TEST_F(Opening, TwoDevicesAreNumberedThrough) {
  sim_device second{{.ordinal = 1, .capacity_bytes = gib}};
  const std::array<device*, 2> devices{&device_, &second};
  settings s;
  ASSERT_TRUE(s.set("pools", "25%,25%").ok());
  const auto opened = allocator::open(devices, s);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  ASSERT_EQ((*opened)->devices().size(), 4U);
  EXPECT_EQ((*opened)->devices()[1].physical_ordinal, 0);
  EXPECT_EQ((*opened)->devices()[2].physical_ordinal, 1);
  EXPECT_EQ((*opened)->devices()[2].limit_bytes, 256 * mib);
  ASSERT_TRUE((*opened)->try_allocate({.bytes = 512, .device = 3}).ok());
  EXPECT_EQ(device_.used_bytes(), 0U);
  EXPECT_EQ(second.used_bytes(), (*opened)->stats(3)->reserved_bytes);
  EXPECT_GT(second.used_bytes(), 0U);
}

// --- grab_all ------------------------------------------------------------------------------------------------

TEST_F(Opening, GrabAllTakesEverythingAtTheFirstRequest) {
  const auto opened = open({{"policy", "grab_all"}, {"limit", "3GiB"}});
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(device_.used_bytes(), 0U);
  ASSERT_TRUE((*opened)->try_allocate({.bytes = 512}).ok());
  EXPECT_EQ(device_.used_bytes(), 3 * gib);
  const statistics s = *(*opened)->stats(0);
  EXPECT_EQ(s.segments, 1U);
  EXPECT_EQ(s.asked_at_start_bytes, 3 * gib);
  EXPECT_EQ(s.got_at_start_bytes, 3 * gib);
}

TEST_F(Opening, GrabAllSaysWhenItGotLessThanItAsked) {
  std::string logged;
  const log_sink former = set_log_sink([&](std::string_view line) { logged += std::string{line} + '\n'; });
  const auto opened = open({{"policy", "grab_all"}, {"limit", "3GiB"}});
  ASSERT_TRUE(opened.ok());
  device_.set_foreign_bytes(2 * gib);
  const bool served = (*opened)->try_allocate({.bytes = 512}).ok();
  static_cast<void>(set_log_sink(former));
  EXPECT_TRUE(served);
  const statistics s = *(*opened)->stats(0);
  EXPECT_EQ(s.asked_at_start_bytes, 3 * gib);
  EXPECT_LT(s.got_at_start_bytes, 2 * gib + 1);
  EXPECT_GE(s.got_at_start_bytes, 2 * gib / 10 * 9 - 2 * mib);
  EXPECT_THAT(logged, AllOf(HasSubstr("3.00 GiB"), HasSubstr(format_bytes(s.got_at_start_bytes))));

  device_.set_foreign_bytes(0);  // memory that becomes free later can still be taken
  EXPECT_TRUE((*opened)->try_allocate({.bytes = gib}).ok());
  EXPECT_TRUE((*opened)->try_allocate({.bytes = gib}).ok());
  EXPECT_EQ((*opened)->stats(0)->reserved_bytes, 3 * gib);
}

TEST_F(Opening, GrabAllLeavesTensorFlowsReserve) {
  const auto reserved_on = [](const sim_config& config, std::optional<std::uint64_t> reserve = {}) {
    sim_device on{config};
    const std::array<device*, 1> devices{&on};
    settings s;
    s.policy = "grab_all";
    s.reserve_bytes = reserve;
    const auto opened = allocator::open(devices, s);
    EXPECT_TRUE(opened.ok());
    EXPECT_TRUE((*opened)->try_allocate({.bytes = 512}).ok());
    return (*opened)->stats(0)->reserved_bytes;
  };
  EXPECT_EQ(reserved_on({.capacity_bytes = 4 * gib}), 4 * gib - 1800 * mib);
  EXPECT_EQ(reserved_on({.capacity_bytes = 4 * gib, .compute_major = 8}), 4 * gib - 1536 * mib);
  EXPECT_EQ(reserved_on({.capacity_bytes = gib}), gib - 226 * mib) << "225 MiB, and whole granules of 2 MiB";
  EXPECT_EQ(reserved_on({.capacity_bytes = 4 * gib, .foreign_bytes = gib}), 3 * gib - 1800 * mib);
  EXPECT_EQ(reserved_on({.capacity_bytes = 4 * gib}, 100 * mib), 4 * gib - 100 * mib);
  EXPECT_EQ(reserved_on({.capacity_bytes = 4 * gib}, 0), 4 * gib);
}

TEST_F(Opening, NoReserveIsLeftBesideALimitOrByOtherPolicies) {
  const auto full = open({{"policy", "grab_all"}, {"limit", "100%"}});
  ASSERT_TRUE((*full)->try_allocate({.bytes = 512}).ok());
  EXPECT_EQ(device_.used_bytes(), 4 * gib);
  for (const char* policy : {"growth", "caching"}) {
    EXPECT_EQ((*open({{"policy", policy}}))->devices().front().limit_bytes, 4 * gib) << policy;
  }
}

}  // namespace
}  // namespace gpumem::conformance
