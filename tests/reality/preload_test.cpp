// A5, A6, A9: programs with libgpumem_preload.so. Every case runs in a process of its own, which ctest preloads.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "locks_of_shim.hpp"
#include "preload/world.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class RealityPreload : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(preloaded()) << "run by ctest, which sets LD_PRELOAD and GPUMEM_CUDA_DRIVER";
    setenv("SIMCUDA_BYTES", "1GiB", 1);
    setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  }
  static void* malloc_of(std::size_t bytes) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, bytes), cudaSuccess) << bytes;
    return p;
  }
  static cudaStream_t new_stream() {
    cudaStream_t s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
  }
  static std::uint64_t in_calls_ns() { return of_double<std::uint64_t()>("simcuda_in_calls_ns")(); }
};

constexpr std::uint64_t five_seconds_ns = 5'000'000'000;

/// Driver calls of 64 pairs, after 64 pairs of warm-up.
template <typename Pair>
std::uint64_t driver_calls(const Pair& pair, const char* function = nullptr) {
  const auto calls = of_double<std::uint64_t(const char*)>("simcuda_calls");
  for (int i = 0; i < 64; ++i) pair();
  const std::uint64_t before = calls(function);
  for (int i = 0; i < 64; ++i) pair();
  return calls(function) - before;
}

// Golden figures over all mutexes of the preload library: one lock of the pool per pair. One pair in 16 takes two more:
// for the event that it records, and for the event that is done.
TEST_F(RealityPreload, GoldenLocksOfCudaMallocAndCudaFree) {
  if (!counts_locks()) GTEST_SKIP() << "a sanitizer has pthread_mutex_lock";
  for (const std::size_t bytes : {std::size_t{4096}, mib, 40 * mib}) {
    const auto pair = [bytes] { EXPECT_EQ(cudaFree(malloc_of(bytes)), cudaSuccess); };
    for (int i = 0; i < 256; ++i) pair();
    const std::uint64_t before = locks_of_shim();
    for (int i = 0; i < 256; ++i) pair();
    const std::uint64_t events = bytes < mib ? 256 / 16 : 256;  // a large free has a fence of its own
    EXPECT_LE(locks_of_shim() - before, 256U + 2 * events) << "of 256 pairs of " << bytes << " bytes";
  }
}

// If the limit has room for one such block, each free records a fence. Otherwise the next request would have to record
// it without the lock. One pair in 64 tries without a fence.
TEST_F(RealityPreload, GoldenLocksWhereTheLimitHasRoomForOneBlock) {
  if (!counts_locks()) GTEST_SKIP() << "a sanitizer has pthread_mutex_lock";
  setenv("GPUMEM_LIMIT", "40MiB", 1);
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  const auto pair = [] { EXPECT_EQ(cudaFree(malloc_of(31 * mib)), cudaSuccess); };
  for (int i = 0; i < 256; ++i) pair();
  const std::uint64_t before = locks_of_shim();
  for (int i = 0; i < 256; ++i) pair();
  EXPECT_LE(locks_of_shim() - before, 256U + 2 * 256 + 2 * 256 / 64) << "of 256 pairs, two of each for its event";
  EXPECT_LE(driver_calls(pair, "cuCtxRecordEvent") + driver_calls(pair, "cuEventRecord"), 64U + 1) << "of 64 pairs";
  EXPECT_LE(driver_calls(pair, "cuEventQuery"), 64U + 1) << "of 64 pairs";
}

// A free takes no lock until 16 batches of 16 wait for the thread's next allocation.
TEST_F(RealityPreload, GoldenLocksOfFreesInARow) {
  if (!counts_locks()) GTEST_SKIP() << "a sanitizer has pthread_mutex_lock";
  std::vector<void*> blocks(240);
  for (void*& p : blocks) p = malloc_of(4096);
  const std::uint64_t before = locks_of_shim();
  for (void* const p : blocks) EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_LE(locks_of_shim() - before, 240U / 16) << "one for the event of each batch";
  EXPECT_EQ(cudaFree(blocks.front()), cudaErrorInvalidValue) << "a second free, of a block that is on its way";
}

// Golden: one record and one query for each 16 pairs, with the calls around them.
TEST_F(RealityPreload, GoldenCallsOfCudaMallocAndCudaFree) {
  const auto pair = [] { EXPECT_EQ(cudaFree(malloc_of(4096)), cudaSuccess); };
  const std::uint64_t records = driver_calls(pair, "cuCtxRecordEvent") + driver_calls(pair, "cuEventRecord");
  const std::uint64_t queries = driver_calls(pair, "cuEventQuery");
  EXPECT_LE(records, 64U / 16) << "of 64 pairs";
  EXPECT_LE(queries, 64U / 16) << "of 64 pairs";
  EXPECT_LE(driver_calls(pair), 224U) << "of 64 pairs, those of the runtime itself included";
}

TEST_F(RealityPreload, GoldenCallsOfCudaMallocAsync) {
  cudaStream_t const s = new_stream();
  const auto pair = [s] {
    void* p = nullptr;
    EXPECT_EQ(cudaMallocAsync(&p, 4096, s), cudaSuccess);
    EXPECT_EQ(cudaFreeAsync(p, s), cudaSuccess);
  };
  EXPECT_LE(driver_calls(pair), 128U) << "of 64 pairs: those of the runtime itself";
  EXPECT_EQ(driver_calls(pair, "cuMemAllocAsync"), 0U);
}

// Work enqueued after the cudaFree does not delay the block's reuse.
TEST_F(RealityPreload, A5AMallocDoesNotWaitForWorkThatCameAfterTheFree) {
  setenv("GPUMEM_LIMIT", "256MiB", 1);
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  void* const other = malloc_of(mib);
  void* const p = malloc_of(40 * mib);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  use(new_stream(), five_seconds_ns, other, mib);
  EXPECT_EQ(malloc_of(40 * mib), p) << "nothing used it when it was freed";
  EXPECT_LT(in_calls_ns(), five_seconds_ns);
}

TEST_F(RealityPreload, A5NorWhereTheLimitHasNoRoomForAnother) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  void* const other = malloc_of(mib);
  void* const p = malloc_of(40 * mib);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  use(new_stream(), five_seconds_ns, other, mib);
  EXPECT_EQ(malloc_of(40 * mib), p);
  EXPECT_LT(in_calls_ns(), five_seconds_ns);
}

TEST_F(RealityPreload, A5MemoryIsTakenBeforeAnythingIsWaitedFor) {
  setenv("GPUMEM_LIMIT", "256MiB", 1);
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  void* const p = malloc_of(40 * mib);
  use(new_stream(), five_seconds_ns, p, 40 * mib);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_NE(malloc_of(40 * mib), p) << "in use, and there is room for another";
  EXPECT_LT(in_calls_ns(), five_seconds_ns);
}

// A kernel never ends: the request must fail with out of memory instead of waiting for ever.
TEST_F(RealityPreload, A5TheWaitForAFreedBlockHasAnEnd) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  setenv("GPUMEM_FREE_WAIT", "50", 1);
  void* const p = malloc_of(40 * mib);
  use(new_stream(), 3'600 * std::uint64_t{1'000'000'000}, p, 40 * mib);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  void* q = nullptr;
  EXPECT_EQ(cudaMalloc(&q, 40 * mib), cudaErrorMemoryAllocation);
}

// glibc identifies a loaded library by its SONAME alone.
TEST_F(RealityPreload, A6TheDriverByEitherNameIsTheShim) {
  void* const shim = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  EXPECT_EQ(dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL), shim);
  EXPECT_EQ(dlopen("libcuda.so", RTLD_LAZY | RTLD_NOLOAD), shim);
}

TEST_F(RealityPreload, A6AndInANamespaceOfItsOwn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a second namespace loads the sanitizer a second time, which it refuses";
#endif
  for (const char* name : {"libcuda.so", "libcuda.so.1"}) {
    void* const apart = dlmopen(LM_ID_NEWLM, name, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(apart, nullptr) << dlerror();
    void* const allocate = dlsym(apart, "cuMemAlloc_v2");
    ASSERT_NE(allocate, nullptr);
    Dl_info info{};
    ASSERT_NE(dladdr(allocate, &info), 0);
    EXPECT_NE(std::string_view{info.dli_fname}.find("gpumem_preload"), std::string_view::npos) << info.dli_fname;
  }
}

TEST_F(RealityPreload, A6ANameThatIsNewerThanTheShimIsTheDrivers) {
  auto* const newer = of_driver<int()>("cuSimulatedNewerFunction");
  ASSERT_NE(newer, nullptr);
  EXPECT_EQ(newer(), 42);
  EXPECT_EQ(of_driver<int()>("cuNoFunctionAtAll"), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

// cudaDeviceEnablePeerAccess does not reach mapped pages: gpumem sets their access for the peer.
class RealityPeers : public RealityPreload, public testing::WithParamInterface<bool> {};

TEST_P(RealityPeers, A9APeerReachesExpandableMemory) {
  const bool enabled_first = GetParam();
  setenv("SIMCUDA_DEVICES", "2", 1);
  setenv("GPUMEM_POLICY", "expandable", 1);
  void* p = nullptr;
  const auto enable = [] {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  };
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  if (enabled_first) enable();
  p = malloc_of(40 * mib);
  if (!enabled_first) enable();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(p, 0, mib, new_stream()), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "the pages are not accessible to device 1";
}
INSTANTIATE_TEST_SUITE_P(Order, RealityPeers, testing::Bool());

}  // namespace
}  // namespace gpumem::preload_test
