// RMM from 26.06 on, with cuda::mr only: its references, adaptors and per-device resource over gpumem, on the doubles
// of CUDA's runtime and driver. With RMM's own library, the test must not reach the runtime that it contains; with
// RMM's sources compiled against the double (scripts/rmm), its containers run as well.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <rmm/device_buffer.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <vector>

#include "gpumem/adapters/rmm.hpp"
#include "gpumem/default_allocator.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

static_assert(cuda::mr::resource_with<rmm_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<rmm_resource, cuda::mr::host_accessible>);
static_assert(cuda::mr::resource_with<cuda_resource, cuda::mr::device_accessible>);

class RmmMr : public ::testing::Test {
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

TEST_F(RmmMr, ServesItsReference) {
  rmm_resource memory{all(), 1};
  const rmm::device_async_resource_ref ref{memory};
  void* const block = rmm::device_async_resource_ref{ref}.allocate(stream_, 1024, 256);
  EXPECT_EQ(now(1).requested_bytes, 1024U);
  EXPECT_EQ(cudaMemsetAsync(block, 1, 1024, stream_), cudaSuccess);
  rmm::device_async_resource_ref{ref}.deallocate(stream_, block, 1024, 256);
  EXPECT_EQ(now(1).live_blocks, 0U);
  EXPECT_EQ(now(1).misuses, 0U);
}

TEST_F(RmmMr, IsTheDevicesResource) {
  const auto former = rmm::mr::set_per_device_resource(rmm::cuda_device_id{0}, rmm_resource{all()});
  rmm::device_async_resource_ref ref = rmm::mr::get_per_device_resource_ref(rmm::cuda_device_id{0});
  void* const block = ref.allocate(stream_, 4096, 256);
  EXPECT_EQ(now().live_bytes, 4096U);
  ref.deallocate(stream_, block, 4096, 256);
  rmm::mr::reset_per_device_resource(rmm::cuda_device_id{0});
}

TEST_F(RmmMr, ServesAnAdaptor) {
  rmm::mr::statistics_resource_adaptor counted{rmm_resource{all()}};
  void* const block = counted.allocate(stream_, 4096, 256);
  EXPECT_EQ(counted.get_bytes_counter().value, 4096);
  EXPECT_EQ(now().live_bytes, 4096U);
  counted.deallocate(stream_, block, 4096, 256);
  EXPECT_EQ(counted.get_bytes_counter().value, 0);
}

TEST_F(RmmMr, OutOfMemoryIsRmmsOwnWithTheReport) {
  rmm_resource memory{all()};
  try {
    static_cast<void>(memory.allocate(stream_, 65 << 20));
    FAIL() << "the pool has 64 MiB";
  } catch (const rmm::out_of_memory& e) {
    EXPECT_THAT(e.what(), HasSubstr("65.00 MiB"));
  }
}

// As cuDF spills: the callback frees memory, and the request is served.
TEST_F(RmmMr, AFailureCallbackFreesAndTheRequestIsServed) {
  rmm_resource memory{all()};
  void* spilled = memory.allocate(stream_, 60 << 20);
  const auto spill = [&](std::size_t /*bytes*/, void* /*user*/) {
    memory.deallocate(stream_, spilled, 60 << 20);
    return true;
  };
  rmm::mr::failure_callback_resource_adaptor<> retried{memory, spill, nullptr};
  void* const block = retried.allocate(stream_, 60 << 20, 256);
  EXPECT_NE(block, nullptr);
  retried.deallocate(stream_, block, 60 << 20, 256);
  EXPECT_EQ(now().live_blocks, 0U);
}

TEST_F(RmmMr, ComparesByItsAllocator) {
  EXPECT_TRUE(rmm_resource{all()} == rmm_resource{all()});
  EXPECT_FALSE(rmm_resource{all()} == (rmm_resource{all(), 1}));
}

#ifdef GPUMEM_TEST_RMM_RUNS
TEST_F(RmmMr, ItsBuffersLieInGpumem) {
  const std::vector<unsigned char> ones(100'000, 1);
  std::vector<unsigned char> back(ones.size());
  rmm_resource memory{all()};
  {
    rmm::device_buffer there{ones.data(), ones.size(), stream_, memory};
    there.resize(2 * ones.size(), stream_);
    ASSERT_EQ(cudaMemcpyAsync(back.data(), there.data(), back.size(), cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(back, ones);
    EXPECT_EQ(now().requested_bytes, 2 * ones.size());
  }
  EXPECT_EQ(now().live_blocks, 0U);
}
#endif

}  // namespace
}  // namespace gpumem
