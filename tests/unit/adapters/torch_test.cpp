// PyTorch's entry points as PyTorch calls them, with the driver double loaded as this process's driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "gpumem/default_allocator.hpp"
#include "two_gpus.hpp"

extern "C" {
void* gpumem_torch_alloc(std::ptrdiff_t bytes, int device, void* stream);
void gpumem_torch_free(void* p, std::ptrdiff_t bytes, int device, void* stream);
void gpumem_torch_record_stream(void* p, void* stream);
void gpumem_torch_empty_cache();
void gpumem_torch_init(int devices);
void gpumem_torch_memory_fraction(double fraction, int device);
void* gpumem_torch_base_alloc(void* p, std::size_t* bytes);
}

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class Torch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { use_two_gpus(); }
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

TEST_F(Torch, AMemoryFractionBecomesTheLimitOfTheFirstPool) {
  gpumem_torch_init(2);
  gpumem_torch_memory_fraction(0.125, 1);
  EXPECT_EQ(all().stats(2)->limit_bytes, 32U << 20);
  EXPECT_THROW(static_cast<void>(gpumem_torch_alloc(33 << 20, 1, nullptr)), out_of_memory);
  gpumem_torch_memory_fraction(0.125, 0);
  EXPECT_EQ(all().stats(0)->limit_bytes, 32U << 20);
  EXPECT_EQ(all().stats(1)->limit_bytes, 64U << 20) << "the other pool of that GPU keeps its own";
  gpumem_torch_memory_fraction(1, 1);
  for (const double bad : {0.0, -0.5, 1.01, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(gpumem_torch_memory_fraction(bad, 1), std::invalid_argument) << bad;
  }
  EXPECT_THROW(gpumem_torch_memory_fraction(0.5, 2), bad_request);
  EXPECT_EQ(all().stats(2)->limit_bytes, 256U << 20);
}

TEST_F(Torch, TheBaseOfABlockIsItsSegment) {
  void* const block = gpumem_torch_alloc(1000, 1, nullptr);
  void* const after = gpumem_torch_alloc(1000, 1, nullptr);
  std::size_t bytes = 0;
  void* const base = gpumem_torch_base_alloc(after, &bytes);
  EXPECT_EQ(base, gpumem_torch_base_alloc(block, nullptr)) << "both are of one segment";
  EXPECT_EQ(bytes, all().describe(after)->segment_bytes);
  EXPECT_GE(bytes, 2048U);
  gpumem_torch_free(block, 1000, 1, nullptr);
  gpumem_torch_free(after, 1000, 1, nullptr);
  EXPECT_THROW(static_cast<void>(gpumem_torch_base_alloc(&bytes, nullptr)), std::invalid_argument);
}

}  // namespace
}  // namespace gpumem
