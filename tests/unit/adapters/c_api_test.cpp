// gpumem.h where C alone does not suffice: the process's own allocator, real devices, threads. tests/api/c_program.c
// tests the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "gpumem/default_allocator.hpp"
#include "gpumem/gpumem.h"
#include "two_gpus.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class CInterface : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { use_two_gpus(); }
};

TEST_F(CInterface, TheDefaultIsTheProcessesOwn) {
  gpumem_allocator* memory = nullptr;
  gpumem_allocator* again = nullptr;
  ASSERT_EQ(gpumem_default(&memory), GPUMEM_OK) << gpumem_last_message();
  ASSERT_EQ(gpumem_default(&again), GPUMEM_OK);
  EXPECT_EQ(memory, again);
  void* block = nullptr;
  ASSERT_EQ(gpumem_allocate(memory, 1000, 2, nullptr, &block), GPUMEM_OK);
  EXPECT_EQ((*default_allocator())->describe(block)->requested_bytes, 1000U);
  EXPECT_EQ(gpumem_free(memory, block), GPUMEM_OK);
  EXPECT_EQ(gpumem_close(memory), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_message(), HasSubstr("never closed"));
  void* stream = nullptr;
  EXPECT_EQ(gpumem_simulated_stream(memory, 0, &stream), GPUMEM_UNSUPPORTED);
}

TEST_F(CInterface, AnotherOneOverTheSameGpusHasSettingsOfItsOwn) {
  gpumem_allocator* memory = nullptr;
  ASSERT_EQ(gpumem_open("limit=32MiB", &memory), GPUMEM_BAD_SETTING) << "GPUMEM_POOLS_0 of the environment needs more";
  ASSERT_EQ(gpumem_open("limit=50% policy=grab_all", &memory), GPUMEM_OK) << gpumem_last_message();
  gpumem_device shown{};
  shown.struct_bytes = sizeof shown;
  ASSERT_EQ(gpumem_device_properties(memory, 2, &shown), GPUMEM_OK);
  EXPECT_EQ(shown.physical_ordinal, 1);
  EXPECT_EQ(shown.total_bytes, 128U << 20);
  EXPECT_STREQ(shown.policy, "caching") << "the environment wins";
  EXPECT_EQ(shown.simulated, 1) << "the double says what it is";
  EXPECT_THAT(shown.gpu_uuid, HasSubstr("GPU-"));
  EXPECT_EQ(gpumem_close(memory), GPUMEM_OK);
}

TEST_F(CInterface, EachThreadHasItsOwnMessage) {
  gpumem_allocator* memory = nullptr;
  ASSERT_EQ(gpumem_open_simulated(256U << 20, 1, 0, nullptr, &memory), GPUMEM_OK);
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([memory, t] {
      EXPECT_STREQ(gpumem_last_message(), "");
      const std::string mine = "device " + std::to_string(100 * t) + " does";
      for (int i = 0; i < 200; ++i) {
        void* block = nullptr;
        ASSERT_EQ(gpumem_allocate(memory, 512, 100 * t, nullptr, &block), GPUMEM_WRONG_DEVICE);
        ASSERT_THAT(gpumem_last_message(), HasSubstr(mine));
        ASSERT_EQ(gpumem_allocate(memory, 512, 0, nullptr, &block), GPUMEM_OK);
        ASSERT_EQ(gpumem_free(memory, block), GPUMEM_OK);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(gpumem_check(memory, 0), GPUMEM_OK) << gpumem_last_message();
  EXPECT_EQ(gpumem_close(memory), GPUMEM_OK);
}

TEST_F(CInterface, TellsOfEveryCounter) {
  EXPECT_EQ(sizeof(gpumem_stats), sizeof(std::size_t) + sizeof(statistics))
      << "statistics.hpp has another counter: append it to gpumem_stats, at the end, and to to_c in c_api_report.cpp";
}

TEST_F(CInterface, EveryCodeHasItsName) {
  for (int code = GPUMEM_OK; code <= GPUMEM_CORRUPT; ++code) {
    EXPECT_EQ(gpumem_code_name(static_cast<gpumem_code>(code)), to_string(static_cast<errc>(code)));
  }
}

}  // namespace
}  // namespace gpumem
