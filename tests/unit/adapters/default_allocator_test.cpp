// The process's default allocator: the cards of the driver that it covers, and its answers to `gpumem top`. Over the
// doubles of the driver and of NVML. One allocator a process, so each test is its own process.
#include "gpumem/default_allocator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bits.hpp"
#include "gpumem/cuda_device.hpp"
#include "status_socket.hpp"
#include "temporary_folder.hpp"

namespace gpumem {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;

class DefaultAllocator : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string zeros = "00000000-0000-0000-0000-00000000000";
    set("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER);
    set("GPUMEM_NVML", GPUMEM_TEST_NVML);
    set("GPUMEM_SHARED_FOLDER", folder_);
    set("SIMCUDA_DEVICES", "3");
    set("SIMCUDA_BYTES", "256MiB");
    set("SIMCUDA_HOST_MEMORY", "0");
    set("FAKENVML_CARDS", "3");
    set("FAKENVML_UUIDS", zeros + "2," + zeros + "1," + zeros + "0");  // in reverse order
    set("FAKENVML_USED", "0=20000,2=20000");
    set("FAKENVML_PIDS", "0=1,2=1");
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

TEST_F(DefaultAllocator, IsOverTheCardsThatGpumemDevicesNames) {
  set("GPUMEM_DEVICES", "2,0");
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  ASSERT_EQ((*all)->devices().size(), 2U);
  EXPECT_EQ((*all)->devices()[0].physical_ordinal, 2);
  EXPECT_EQ((*all)->devices()[1].physical_ordinal, 0);
  void* const block = (*all)->allocate(1000, {}, 1);
  EXPECT_EQ((*all)->describe(block)->device, 1);
  (*all)->deallocate(block);
}

TEST_F(DefaultAllocator, AutoIsTheUnusedCard) {
  set("GPUMEM_DEVICES", "auto");
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  ASSERT_EQ((*all)->devices().size(), 1U);
  EXPECT_EQ((*all)->devices()[0].physical_ordinal, 1);
}

TEST_F(DefaultAllocator, ACardThatDoesNotExistOpensNothing) {
  set("GPUMEM_DEVICES", "7");
  EXPECT_THAT(default_allocator().why().message(),
              HasSubstr("GPUMEM_DEVICES=7: card 7 does not exist; expected 0 to 2"));
}

// --- first use under grab_all: every visible device, as TensorFlow does ---------------------------------------------

std::vector<std::uint64_t> reserved_of(const allocator& all) {
  std::vector<std::uint64_t> out;
  for (const logical_device& each : all.devices()) out.push_back(all.stats(each.ordinal)->reserved_bytes);
  return out;
}

TEST_F(DefaultAllocator, FirstUseUnderGrabAllTakesEveryVisibleDevice) {
  set("GPUMEM_POLICY", "grab_all");
  set("GPUMEM_LIMIT", "50%");
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  EXPECT_THAT(reserved_of(**all), ElementsAre(0, 0, 0)) << "opening it is no use yet";
  EXPECT_FALSE((*all)->try_allocate({.bytes = 0, .device = 1}).ok());
  EXPECT_THAT(reserved_of(**all), ElementsAre(0, 0, 0)) << "nor is a request that is none";
  (*all)->deallocate((*all)->allocate(1000, {}, 1));
  EXPECT_THAT(reserved_of(**all), ElementsAre(128 * mib, 128 * mib, 128 * mib));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE((*all)->check(i).ok()) << i;
}

TEST_F(DefaultAllocator, FirstUseTakesOnlyDevicesThatGpumemDevicesSelects) {
  set("GPUMEM_POLICY", "grab_all");
  set("GPUMEM_DEVICES", "2,0");
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  const auto card_1 = open_cuda_device({.ordinal = 1});
  ASSERT_TRUE((*card_1)->synchronize().ok()) << "makes the context: then it is the driver that is asked";
  const auto free_of_card_1 = [&] { return (*card_1)->memory()->free_bytes; };
  const std::uint64_t before = free_of_card_1();
  EXPECT_EQ(before, 256 * mib);
  (*all)->deallocate((*all)->allocate(1000, {}, 0));
  EXPECT_THAT(reserved_of(**all), ElementsAre(Gt(0), Gt(0)));
  EXPECT_EQ(free_of_card_1(), before);
}

TEST_F(DefaultAllocator, FirstUseLeavesDevicesOfOtherPoliciesAlone) {
  set("GPUMEM_POLICY", "grab_all");
  set("GPUMEM_RESERVE", "64MiB");
  set("GPUMEM_POLICY_1", "growth");
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  (*all)->deallocate((*all)->allocate(1000, {}, 2));
  EXPECT_THAT(reserved_of(**all), ElementsAre(Gt(0), 0, Gt(0)));
}

TEST_F(DefaultAllocator, FirstUseUnderAnotherPolicyTakesNothingElsewhere) {
  const auto all = default_allocator();
  (*all)->deallocate((*all)->allocate(1000, {}, 1));
  EXPECT_THAT(reserved_of(**all), ElementsAre(0, Gt(0), 0));
}

TEST_F(DefaultAllocator, TakesOptionsThatTheEnvironmentLeavesOpen) {
  EXPECT_THAT(set_default_option("policy_of", "caching").message(), HasSubstr("policy_of"));
  ASSERT_TRUE(set_default_option("policy", "caching").ok());
  ASSERT_TRUE(set_default_option("limit", "64MiB").ok());
  set("GPUMEM_LIMIT", "128MiB");
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  EXPECT_EQ((*all)->devices()[0].policy, "caching");
  EXPECT_EQ((*all)->devices()[0].limit_bytes, 128 * mib) << "the environment wins";
  EXPECT_EQ(::getenv("GPUMEM_POLICY"), nullptr) << "children inherit nothing";
}

TEST_F(DefaultAllocator, TakesNoOptionThatWasTakenBack) {
  ASSERT_TRUE(set_default_option("policy", "caching").ok());
  ASSERT_TRUE(set_default_option("policy", std::nullopt).ok());
  const auto all = default_allocator();
  ASSERT_TRUE(all.ok()) << all.why().message();
  EXPECT_EQ((*all)->devices()[0].policy, "growth");
}

TEST_F(DefaultAllocator, AnswersGpumemTop) {
  ASSERT_TRUE(default_allocator().ok());
  const auto told = ask_served(folder_, std::chrono::seconds{5});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].pid, ::getpid());
  EXPECT_THAT(told[0].answer, HasSubstr("\"policy\":\"growth\""));
}

TEST_F(DefaultAllocator, PublishesNothingWithoutPermission) {
  set("GPUMEM_PUBLISH", "0");
  ASSERT_TRUE(default_allocator().ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace gpumem
