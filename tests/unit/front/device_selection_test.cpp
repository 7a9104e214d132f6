// GPUMEM_DEVICES over devices that the driver shows, and a group's budget over their pools.
#include "device_selection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "published_figures.hpp"
#include "shared_folder.hpp"
#include "temporary_folder.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;
using lines = std::vector<std::string>;

settings with(std::initializer_list<std::pair<const char*, std::string>> options) {
  settings s;
  for (const auto& [name, value] : options) EXPECT_TRUE(s.set(name, value).ok()) << name << "=" << value;
  return s;
}

class DeviceSelection : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      sim_config c;
      c.ordinal = i;
      owned_.push_back(std::make_unique<sim_device>(c));
      devices_.push_back(owned_.back().get());
      usage_.emplace_back().uuid = devices_.back()->info().uuid;
    }
    former_ = set_log_sink([this](std::string_view line) { said_.emplace_back(line); });
  }
  void TearDown() override { set_log_sink(former_); }

  result<std::vector<device*>> select(settings s) {
    s.shared_folder = leases_.path();
    return selected_devices(devices_, s, [this]() -> result<std::vector<gpu_usage>> {
      ++asked_;
      if (no_nvml_) return status{errc::unsupported, "no libnvidia-ml.so.1"};
      return usage_;
    });
  }

  temporary_folder leases_;
  std::vector<std::unique_ptr<sim_device>> owned_;
  std::vector<device*> devices_;
  std::vector<gpu_usage> usage_;
  bool no_nvml_ = false;
  int asked_ = 0;
  lines said_;
  log_sink former_;
};

TEST_F(DeviceSelection, WithoutASettingItIsAllAndNoUsageIsQueried) {
  EXPECT_EQ(*select({}), devices_);
  EXPECT_EQ(*select(with({{"devices", "2,0"}})), (std::vector{devices_[2], devices_[0]}));
  EXPECT_EQ(asked_, 0);
  EXPECT_EQ(said_, lines{});
}

TEST_F(DeviceSelection, AutoTakesUnusedDevices) {
  usage_[0].processes.resize(1);
  usage_[2].busy_percent = 50;
  const auto chosen = select(with({{"devices", "auto"}, {"verbose", "1"}}));
  ASSERT_TRUE(chosen.ok()) << chosen.why().message();
  EXPECT_EQ(*chosen, std::vector{devices_[1]});
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("device 0 is " + devices_[1]->info().uuid));
  const auto next = select(with({{"devices", "auto"}}));
  ASSERT_TRUE(next.ok());
  EXPECT_NE(*next, *chosen) << "the lease is held until the process ends";
}

TEST_F(DeviceSelection, ImpossibleChoicesAreErrorsOrWarnings) {
  EXPECT_THAT(select(with({{"devices", "7"}})).why().message(), HasSubstr("card 7 does not exist; expected 0 to 2"));
  EXPECT_THAT(select(with({{"devices", ""}})).why().message(), HasSubstr("no device to allocate from"));
  EXPECT_EQ(said_, lines{});
  const auto soft = select(with({{"devices", "7"}, {"soft_placement", "1"}}));
  ASSERT_TRUE(soft.ok());
  EXPECT_EQ(soft->size(), 1U);
  EXPECT_THAT(said_.at(0), HasSubstr("is used instead"));
  no_nvml_ = true;
  EXPECT_EQ(select(with({{"devices", "auto"}})).code(), errc::bad_setting);
}

class Group : public DeviceSelection {
 protected:
  void SetUp() override {
    DeviceSelection::SetUp();
    folder_ = ::testing::TempDir() + "gpumem-group-" + std::to_string(::getpid());
    ASSERT_TRUE(shared_folder(folder_).ok());
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    DeviceSelection::TearDown();
  }
  settings member(const char* limit) {
    return with({{"group", "lab"}, {"group_limit", limit}, {"shared_folder", folder_}});
  }
  std::string folder_;
};

TEST_F(Group, AllPoolsOnADeviceShareItsBudgetAndDevicesAreApart) {
  settings s = member("1GiB");
  ASSERT_TRUE(s.set("pools", "10GiB,10GiB").ok());
  auto all = allocator::open(std::span{devices_}.first(2), s);
  ASSERT_TRUE(all.ok()) << all.why().message();
  void* const first = (*all)->allocate(600 * mib, {}, 0);
  EXPECT_NE(first, nullptr);
  oom_report report;
  const auto refused = (*all)->try_allocate({.bytes = 600 * mib, .stream = {}, .device = 1}, &report);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(report.cause, oom_cause::limit);
  EXPECT_THAT(report.headline(), HasSubstr("group lab holds"));
  EXPECT_THAT(report.headline(), HasSubstr("free, pid " + std::to_string(::getpid()) + " (front_test) "));
  EXPECT_NE((*all)->allocate(600 * mib, {}, 2), nullptr) << "the other card";
  (*all)->deallocate(first);
  EXPECT_GT((*all)->trim(0)->returned_bytes, 0U);
  EXPECT_NE((*all)->allocate(600 * mib, {}, 1), nullptr) << "what one pool gave back serves the other";
  for (int d = 0; d < 4; ++d) EXPECT_TRUE((*all)->check(d).ok());
}

TEST_F(Group, AnAllocatorsShareReturnsWithIt) {
  const settings s = member("1GiB");
  for (int i = 0; i < 3; ++i) {
    auto all = allocator::open(std::span{devices_}.first(1), s);
    ASSERT_TRUE(all.ok());
    EXPECT_NE((*all)->allocate(900 * mib), nullptr);
  }
}

TEST_F(Group, ARefusalOfTheDeviceCostsTheGroupNothing) {
  auto all = allocator::open(std::span{devices_}.first(1), member("1GiB"));
  ASSERT_TRUE(all.ok());
  owned_[0]->set_foreign_bytes(80 * gib);
  EXPECT_EQ((*all)->try_allocate({.bytes = 600 * mib}).code(), errc::out_of_memory);
  owned_[0]->set_foreign_bytes(0);
  EXPECT_NE((*all)->allocate(1024 * mib), nullptr);
}

TEST_F(Group, ImpossibleGroupsAreRefusedBeforeTheFirstRequest) {
  const auto refusal = [&](const settings& s) {
    const auto all = allocator::open(devices_, s);
    EXPECT_FALSE(all.ok());
    return all.why().message();
  };
  EXPECT_THAT(refusal(with({{"group_limit", "1GiB"}})), HasSubstr("GPUMEM_GROUP_LIMIT=1GiB: needs GPUMEM_GROUP"));
  EXPECT_THAT(refusal(with({{"group", "lab"}, {"shared_folder", folder_}})), HasSubstr("needs GPUMEM_GROUP_LIMIT"));
  EXPECT_THAT(refusal(member("81GiB")), HasSubstr("expected at most what is there"));
  EXPECT_THAT(refusal(member("1KiB")), HasSubstr("less than one segment"));
  const std::string ledger = folder_ + "/group-lab-" + devices_[0]->info().uuid;
  std::filesystem::remove(ledger);
  std::filesystem::create_symlink("/dev/null", ledger);
  EXPECT_THAT(refusal(member("1GiB")), HasSubstr("is a symlink"));
}

TEST_F(DeviceSelection, FiguresForTopNameEachPool) {
  settings s = with({{"policy", "caching"}, {"limit", "10GiB"}});
  auto all = allocator::open(std::span{devices_}.subspan(1), s);
  ASSERT_TRUE(all.ok());
  (*all)->deallocate((*all)->allocate(10 * mib, {}, 0));
  void* const kept = (*all)->allocate(100 * mib, {}, 1);
  EXPECT_NE(kept, nullptr);
  const allocator* const served[]{all->get()};
  const json told = json::parse(published_figures(served, s));
  EXPECT_EQ(told["schema"], 1);
  EXPECT_EQ(told["pid"], ::getpid());
  EXPECT_THAT(told["command"].get<std::string>(), HasSubstr("front_test"));
  ASSERT_EQ(told["devices"].size(), 2U);
  EXPECT_EQ(told["devices"][0]["uuid"], devices_[1]->info().uuid);
  EXPECT_EQ(told["devices"][0]["live_bytes"], 0);
  EXPECT_EQ(told["devices"][1]["policy"], "caching");
  EXPECT_EQ(told["devices"][1]["limit_bytes"], 10 * gib);
  EXPECT_EQ(told["devices"][1]["live_bytes"], 100 * mib);
  EXPECT_GE(told["devices"][1]["reserved_bytes"], 100 * mib);
}

}  // namespace
}  // namespace gpumem
