// The resource with cuda::mr's own concepts and references, over the doubles of CUDA's runtime and driver, with host
// memory.
#include "gpumem/adapters/cuda_mr.hpp"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <concepts>
#include <cstdlib>
#include <cuda/version>
#include <string>
#include <vector>

#include "gpumem/default_allocator.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

#if CCCL_VERSION < 3001000
static_assert(cuda::mr::resource<cuda_resource>);
static_assert(cuda::mr::resource_with<cuda_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::async_resource<cuda_resource>);
static_assert(cuda::mr::async_resource_with<cuda_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::async_resource_with<cuda_resource, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::synchronous_resource<cuda_resource>);
static_assert(cuda::mr::resource<cuda_resource>);
static_assert(cuda::mr::resource_with<cuda_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<cuda_resource, cuda::mr::host_accessible>);
#endif

// The requirements of both generations of CCCL, written out here so that either CCCL checks both.
template <typename R>
concept older_resource = std::equality_comparable<R> && requires(R r, void* p, std::size_t n, cuda::stream_ref s) {
  { r.allocate(n, n) } -> std::same_as<void*>;
  { r.deallocate(p, n, n) } -> std::same_as<void>;
  { r.allocate_async(n, n, s) } -> std::same_as<void*>;
  { r.deallocate_async(p, n, n, s) } -> std::same_as<void>;
};
template <typename R>
concept newer_resource = std::equality_comparable<R> && std::copyable<R> &&
    requires(R r, void* p, std::size_t n, cuda::stream_ref s) {
  { r.allocate_sync(n, n) } -> std::same_as<void*>;
  { r.deallocate_sync(p, n, n) } -> std::same_as<void>;
  { r.allocate(s, n, n) } -> std::same_as<void*>;
  { r.deallocate(s, p, n, n) } -> std::same_as<void>;
};
static_assert(older_resource<cuda_resource> && newer_resource<cuda_resource>);

class CudaMr : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER, 1);
    setenv("SIMCUDA_BYTES", "256MiB", 1);
    setenv("SIMCUDA_DEVICES", "2", 1);
    setenv("GPUMEM_DEVICES", "0", 1);
    setenv("GPUMEM_POOLS", "64MiB,64MiB", 1);
  }
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    set_log_sink([this](std::string_view line) { said_ += std::string{line} + "\n"; });
  }
  void TearDown() override {
    set_log_sink(nullptr);
    EXPECT_EQ(said_, "");
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  static allocator& all() { return **default_allocator(); }
  static statistics now(int logical = 0) { return *all().stats(logical); }

  /// Through the device and back, on the stream.
  void expect_usable(void* block, std::size_t bytes) const {
    std::vector<unsigned char> back(bytes);
    ASSERT_EQ(cudaMemsetAsync(block, 0x5a, bytes, stream_), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(back.data(), block, bytes, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(back, std::vector<unsigned char>(bytes, 0x5a));
  }

  cudaStream_t stream_ = nullptr;
  std::string said_;
};

#if CCCL_VERSION < 3001000
TEST_F(CudaMr, ServesAReferenceOfTheInstalledCccl) {
  cuda_resource memory{all()};
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> ref{memory};
  void* const block = ref.allocate_async(1000, 256, cuda::stream_ref{stream_});
  EXPECT_EQ(now().requested_bytes, 1000U);
  expect_usable(block, 1000);
  ref.deallocate_async(block, 1000, 256, cuda::stream_ref{stream_});
  EXPECT_EQ(now().live_blocks, 0U);
  void* const waited = ref.allocate(2000, 256);
  expect_usable(waited, 2000);
  ref.deallocate(waited, 2000, 256);
  EXPECT_EQ(now().live_blocks, 0U);
}
#else
TEST_F(CudaMr, ServesAReferenceOfTheInstalledCccl) {
  cuda_resource memory{all()};
  cuda::mr::resource_ref<cuda::mr::device_accessible> ref{memory};
  void* const block = ref.allocate(cuda::stream_ref{stream_}, 1000, 256);
  expect_usable(block, 1000);
  ref.deallocate(cuda::stream_ref{stream_}, block, 1000, 256);
  EXPECT_EQ(now().live_blocks, 0U);
}
#endif

TEST_F(CudaMr, ServesTheNewerNames) {
  cuda_resource memory{all()};
  void* const block = memory.allocate(cuda::stream_ref{stream_}, 1000);
  expect_usable(block, 1000);
  memory.deallocate(cuda::stream_ref{stream_}, block, 1000);
  void* const waited = memory.allocate_sync(3000);
  expect_usable(waited, 3000);
  memory.deallocate_sync(waited, 3000);
  EXPECT_EQ(now().live_blocks, 0U);
  EXPECT_EQ(now().misuses, 0U);
}

TEST_F(CudaMr, FreesInTheOrderOfTheStreamThatIsNamed) {
  cuda_resource memory{all()};
  void* const block = memory.allocate_async(1 << 20, cuda::stream_ref{stream_});
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  memory.deallocate_async(block, 1 << 20, cuda::stream_ref{other});
  const std::uint64_t waits = now().device_waits;
  void* const again = memory.allocate_async(1 << 20, cuda::stream_ref{other});
  EXPECT_EQ(again, block) << "free at once on the stream that freed it";
  EXPECT_EQ(now().device_waits, waits);
  memory.deallocate_async(again, 1 << 20, cuda::stream_ref{other});
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(CudaMr, BlocksWithoutAStreamAreReadyForAnyStream) {
  cuda_resource memory{all()};
  void* const block = memory.allocate(1 << 20);
  ASSERT_EQ(cudaMemsetAsync(block, 1, 1 << 20, nullptr), cudaSuccess);  // work in flight on the default stream
  memory.deallocate_async(block, 1 << 20, cuda::stream_ref{cudaStream_t{nullptr}});
  ASSERT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  void* const again = memory.allocate(1 << 20);
  EXPECT_EQ(again, block);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess) << "what used the block before is done";
  memory.deallocate(again, 1 << 20);
}

// Uses the default stream of the resource's device, whichever device is current.
TEST_F(CudaMr, BlocksWithoutAStreamAreReadyWithAnotherDeviceCurrent) {
  cuda_resource r{all()};
  void* const first = r.allocate_sync(8 << 20);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(cudaMemsetAsync(first, 0, 8 << 20, nullptr), cudaSuccess);
  r.deallocate_sync(first, 8 << 20);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* const again = r.allocate_sync(8 << 20);
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess) << "the fills were still running";
  r.deallocate_sync(again, 8 << 20);
}

TEST_F(CudaMr, ComparesByItsAllocator) {
  const cuda_resource memory{all()};
  const cuda_resource& same = memory;
  EXPECT_TRUE(memory == cuda_resource{all()});
  EXPECT_TRUE(memory == same);
  EXPECT_FALSE(memory == (cuda_resource{all(), 1}));
}

TEST_F(CudaMr, KeepsToItsLogicalDevice) {
  cuda_resource second{all(), 1};
  void* const block = second.allocate_async(512, cuda::stream_ref{stream_});
  EXPECT_EQ(all().describe(block)->device, 1);
  second.deallocate_async(block, 512, cuda::stream_ref{stream_});
  EXPECT_EQ(now(1).live_blocks, 0U);
}

TEST_F(CudaMr, RefusesWithAnException) {
  cuda_resource memory{all()};
  EXPECT_THROW(static_cast<void>(memory.allocate_async(65 << 20, cuda::stream_ref{stream_})), out_of_memory);
  EXPECT_THROW(static_cast<void>(memory.allocate_async(512, 768, cuda::stream_ref{stream_})), bad_request);
  void* const nothing = memory.allocate_async(0, cuda::stream_ref{stream_});
  EXPECT_NE(nothing, nullptr);
  memory.deallocate_async(nothing, 0, cuda::stream_ref{stream_});
  EXPECT_EQ(now().live_blocks, 0U);
}

}  // namespace
}  // namespace gpumem
