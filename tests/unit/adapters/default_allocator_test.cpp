// The allocator that opens itself: which cards of the driver's it is over, and that `gpumem top` can ask it. Over the
// doubles of the driver and of NVML; one allocator a process, so each test is a process of its own.
#include "gpumem/default_allocator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "status_socket.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class DefaultAllocator : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (std::filesystem::temp_directory_path() / "gpumem-default-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    const std::string zeros = "00000000-0000-0000-0000-00000000000";
    set("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER);
    set("GPUMEM_NVML", GPUMEM_TEST_NVML);
    set("GPUMEM_SHARED_FOLDER", folder_);
    set("SIMCUDA_DEVICES", "3");
    set("SIMCUDA_BYTES", "256MiB");
    set("SIMCUDA_HOST_MEMORY", "0");
    set("FAKENVML_CARDS", "3");
    set("FAKENVML_UUIDS", zeros + "2," + zeros + "1," + zeros + "0");  // the other way round
    set("FAKENVML_USED", "0=20000,2=20000");
    set("FAKENVML_PIDS", "0=1,2=1");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  std::string folder_;
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

TEST_F(DefaultAllocator, AutoIsTheCardThatNobodyUses) {
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

TEST_F(DefaultAllocator, AnswersGpumemTop) {
  ASSERT_TRUE(default_allocator().ok());
  const auto told = ask_served(folder_, std::chrono::seconds{5});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].pid, ::getpid());
  EXPECT_THAT(told[0].answer, HasSubstr("\"policy\":\"growth\""));
}

TEST_F(DefaultAllocator, AnswersNobodyWhereItMustNot) {
  set("GPUMEM_PUBLISH", "0");
  ASSERT_TRUE(default_allocator().ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace gpumem
