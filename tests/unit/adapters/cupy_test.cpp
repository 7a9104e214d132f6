// CuPy's entry points as CFunctionAllocator calls them: by address, from code that catches no exceptions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gpumem/cuda_device.hpp"
#include "gpumem/default_allocator.hpp"
#include "log.hpp"
#include "two_gpus.hpp"

extern "C" {
void* gpumem_cupy_malloc(void* param, std::size_t bytes, int device);
void gpumem_cupy_free(void* param, void* p, int device);
}

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class CuPy : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { use_two_gpus(); }
  void SetUp() override {
    former_ = set_log_sink([this](std::string_view line) { said_ += std::string{line} + "\n"; });
  }
  void TearDown() override { set_log_sink(former_); }
  static allocator& all() { return **default_allocator(); }
  std::string said_;

 private:
  log_sink former_;
};

TEST_F(CuPy, AllocatesOnTheDeviceAndForTheStreamThatItIsGiven) {
  void* const plain = gpumem_cupy_malloc(nullptr, 1000, 1);
  void* const named = gpumem_cupy_malloc(per_thread_stream.handle, 1000, 1);
  EXPECT_EQ(all().describe(plain)->device, 2) << "device 0 has pools 0 and 1";
  EXPECT_EQ(all().stats(2)->streams, 2U) << "the default stream, and the one in param";
  gpumem_cupy_free(per_thread_stream.handle, named, 1);
  gpumem_cupy_free(nullptr, plain, 1);
  EXPECT_EQ(all().stats(2)->live_blocks, 0U);
  EXPECT_EQ(said_, "");
}

TEST_F(CuPy, NothingAskedIsNothing) {
  EXPECT_EQ(gpumem_cupy_malloc(nullptr, 0, 0), nullptr);
  gpumem_cupy_free(nullptr, nullptr, 0);
  EXPECT_EQ(said_, "");
}

TEST_F(CuPy, OutOfMemoryIsNullAndTheReportInTheLog) {
  EXPECT_EQ(gpumem_cupy_malloc(nullptr, std::size_t{1} << 40, 0), nullptr);
  EXPECT_THAT(said_, HasSubstr("1.00 TiB"));
}

TEST_F(CuPy, ADeviceThatDoesNotExistIsRefused) {
  EXPECT_EQ(gpumem_cupy_malloc(nullptr, 512, 9), nullptr);
  EXPECT_THAT(said_, HasSubstr("GPU 9"));
}

}  // namespace
}  // namespace gpumem
