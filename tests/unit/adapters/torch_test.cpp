// PyTorch's entry points as PyTorch calls them, over the double of the driver loaded as this process's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "gpumem/default_allocator.hpp"

extern "C" {
void* gpumem_torch_alloc(std::ptrdiff_t bytes, int device, void* stream);
void gpumem_torch_free(void* p, std::ptrdiff_t bytes, int device, void* stream);
void gpumem_torch_record_stream(void* p, void* stream);
void gpumem_torch_empty_cache();
}

namespace gpumem {
namespace {

using ::testing::HasSubstr;

/// One allocator a process, so all tests share it: two devices of 256 MiB, two pools on the second.
class Torch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER, 1);
    setenv("SIMCUDA_DEVICES", "2", 1);
    setenv("SIMCUDA_BYTES", "256MiB", 1);
    setenv("SIMCUDA_HOST_MEMORY", "0", 1);
    setenv("GPUMEM_POOLS_0", "64MiB,64MiB", 1);
    setenv("GPUMEM_POLICY", "caching", 1);
  }
  static allocator& all() { return **default_allocator(); }
};

TEST_F(Torch, AllocatesOnTheDeviceThatPyTorchNames) {
  void* const first = gpumem_torch_alloc(1000, 0, nullptr);
  void* const second = gpumem_torch_alloc(1000, 1, nullptr);
  EXPECT_EQ(all().describe(first)->device, 0);
  EXPECT_EQ(all().describe(second)->device, 2) << "device 0 has pools 0 and 1";
  EXPECT_EQ(all().describe(second)->requested_bytes, 1000U);
  gpumem_torch_record_stream(first, nullptr);
  gpumem_torch_free(first, 1000, 0, nullptr);
  gpumem_torch_free(second, 1000, 1, nullptr);
  EXPECT_EQ(all().stats(0)->live_blocks, 0U);
  EXPECT_EQ(all().stats(2)->live_blocks, 0U);
}

TEST_F(Torch, NothingAskedIsNothing) {
  EXPECT_EQ(gpumem_torch_alloc(0, 0, nullptr), nullptr);
  gpumem_torch_free(nullptr, 0, 0, nullptr);
}

TEST_F(Torch, OutOfMemoryIsThrownWithTheReport) {
  try {
    static_cast<void>(gpumem_torch_alloc(std::ptrdiff_t{1} << 40, 0, nullptr));
    FAIL() << "expected an exception: PyTorch does not look at null";
  } catch (const std::bad_alloc& e) {
    EXPECT_THAT(e.what(), HasSubstr("1.00 TiB"));
  }
}

TEST_F(Torch, ADeviceThatDoesNotExistIsRefused) {
  EXPECT_THROW(static_cast<void>(gpumem_torch_alloc(512, 9, nullptr)), bad_request);
}

TEST_F(Torch, EmptyCacheGivesBack) {
  gpumem_torch_free(gpumem_torch_alloc(1 << 20, 1, nullptr), 1 << 20, 1, nullptr);
  EXPECT_GT(all().stats(2)->reserved_bytes, 0U);
  gpumem_torch_empty_cache();
  EXPECT_EQ(all().stats(2)->reserved_bytes, 0U);
}

}  // namespace
}  // namespace gpumem
