// RMM's base class and one of its adaptors over the resource, on the doubles of CUDA's runtime and driver. Built if RMM
// up to 26.04 is found.
#include "gpumem/adapters/rmm.hpp"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <rmm/error.hpp>
#if __has_include(<rmm/mr/statistics_resource_adaptor.hpp>)
#include <rmm/mr/statistics_resource_adaptor.hpp>
#else
#include <rmm/mr/device/statistics_resource_adaptor.hpp>
#endif

#include "gpumem/default_allocator.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class Rmm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER, 1);
    setenv("SIMCUDA_BYTES", "256MiB", 1);
    setenv("GPUMEM_POOLS", "64MiB,64MiB", 1);
  }
  void SetUp() override { ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  static allocator& all() { return **default_allocator(); }
  static statistics now(int logical = 0) { return *all().stats(logical); }

  cudaStream_t stream_ = nullptr;
};

/// Calls the functions that RMM's containers call, under their names in this version.
void* take(rmm::mr::device_memory_resource& from, std::size_t bytes, rmm::cuda_stream_view stream) {
#if CCCL_VERSION < 3001000
  return from.allocate_async(bytes, 256, stream);
#else
  return from.allocate(stream, bytes, 256);
#endif
}
void give(rmm::mr::device_memory_resource& to, void* p, std::size_t bytes, rmm::cuda_stream_view stream) {
#if CCCL_VERSION < 3001000
  to.deallocate_async(p, bytes, 256, stream);
#else
  to.deallocate(stream, p, bytes, 256);
#endif
}

TEST_F(Rmm, ServesItsBaseClass) {
  rmm_resource memory{all(), 1};
  rmm::mr::device_memory_resource& base = memory;
  void* const block = take(base, 1024, stream_);
  EXPECT_EQ(now(1).requested_bytes, 1024U);
  EXPECT_EQ(cudaMemsetAsync(block, 1, 1024, stream_), cudaSuccess);
  give(base, block, 1024, stream_);
  EXPECT_EQ(now(1).live_blocks, 0U);
  EXPECT_EQ(now(0).misuses, 0U);
  EXPECT_EQ(take(base, 0, stream_), nullptr);
}

TEST_F(Rmm, ServesAnAdaptor) {
  rmm_resource memory{all()};
  rmm::mr::statistics_resource_adaptor<rmm::mr::device_memory_resource> counted{&memory};
  void* const block = take(counted, 4096, stream_);
  EXPECT_EQ(counted.get_bytes_counter().value, 4096);
  EXPECT_EQ(now().live_bytes, 4096U);
  give(counted, block, 4096, stream_);
  EXPECT_EQ(counted.get_bytes_counter().value, 0);
  EXPECT_EQ(now().live_blocks, 0U);
}

TEST_F(Rmm, OutOfMemoryIsRmmsOwnWithTheReport) {
  rmm_resource memory{all()};
  try {
    static_cast<void>(take(memory, 65 << 20, stream_));
    FAIL() << "the pool has 64 MiB";
  } catch (const rmm::out_of_memory& e) {
    EXPECT_THAT(e.what(), HasSubstr("65.00 MiB"));
  }
}

TEST_F(Rmm, ComparesByItsAllocator) {
  const rmm_resource first{all()};
  const rmm_resource same{all()};
  const rmm_resource second{all(), 1};
  EXPECT_TRUE(first.is_equal(same));
  EXPECT_FALSE(first.is_equal(second));
}

}  // namespace
}  // namespace gpumem
