/// An unmodified program of the CUDA runtime with libgpumem_preload.so over the double of the driver. Every case runs
/// in its own process, so it sets its environment before the first CUDA call.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "world.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

class Preload : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(preloaded()) << "run by ctest, which sets LD_PRELOAD and GPUMEM_CUDA_DRIVER";
    setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);  // limits here are smaller than a context
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
  static std::pair<std::size_t, std::size_t> memory() {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    return {free_bytes, total_bytes};
  }
};

TEST_F(Preload, ManyBlocksAreFewDriverCalls) {
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(malloc_of(4 * kib));
  EXPECT_LE(calls_of(device_call::alloc), 4U);
  for (void* p : blocks) EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(calls_of(device_call::free), 0U);
}

TEST_F(Preload, AFreedBlockServesAgainOnlyWhenTheWorkBeforeTheFreeIsDone) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  void* const first = malloc_of(40 * mib);
  const cudaStream_t busy = new_stream();
  handed_out(first, 40 * mib, nullptr);
  use(busy, 5'000'000, first, 40 * mib);  // still running when it is freed
  given_back(first);
  ASSERT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(calls_of(device_call::record_context), 1U) << "behind what was enqueued until now, and nothing later";
  void* const second = malloc_of(40 * mib);  // the limit has no room for another
  EXPECT_EQ(second, first);
  const cudaStream_t other = new_stream();
  handed_out(second, 40 * mib, other);
  use(other, 1000, second, 40 * mib);  // immediately, on a stream that waits for nothing
  EXPECT_EQ(calls_of(device_call::record_context), 1U) << "one event on the whole context";
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Preload, OneEventServesABatchOfSmallFrees) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(malloc_of(32768));
  for (void* p : blocks) ASSERT_EQ(cudaFree(p), cudaSuccess);
  for (int i = 0; i < 32; ++i) static_cast<void>(malloc_of(32768));
  EXPECT_EQ(calls_of(device_call::record_context), 2U);
}

TEST_F(Preload, CudaMallocDoesNotReturnMemoryThatAStreamStillUses) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  const cudaStream_t s = new_stream();
  void* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(&p, 40 * mib, s), cudaSuccess);
  handed_out(p, 40 * mib, s);
  use(s, 5'000'000, p, 40 * mib);
  given_back(p);
  ASSERT_EQ(cudaFreeAsync(p, s), cudaSuccess);
  void* const q = malloc_of(40 * mib);
  const cudaStream_t other = new_stream();
  handed_out(q, 40 * mib, other);
  use(other, 1000, q, 40 * mib);
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Preload, StreamOrderedMemoryIsServedInStreamOrder) {
  setenv("GPUMEM_STREAM_REUSE", "device", 1);  // the second stream waits for the first
  const cudaStream_t s = new_stream();
  const cudaStream_t t = new_stream();
  void* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(&p, mib, s), cudaSuccess);
  const std::uint64_t taken = calls_of(device_call::alloc);
  for (int i = 0; i < 50; ++i) {
    handed_out(p, mib, s);
    use(s, 100'000, p, mib);
    given_back(p);
    ASSERT_EQ(cudaFreeAsync(p, s), cudaSuccess);
    void* again = nullptr;
    ASSERT_EQ(cudaMallocAsync(&again, mib, s), cudaSuccess);
    EXPECT_EQ(again, p) << "its own stream has it back at once";
  }
  void* q = nullptr;
  ASSERT_EQ(cudaMallocAsync(&q, mib, t), cudaSuccess);
  handed_out(q, mib, t);
  use(t, 1000, q, mib);
  EXPECT_EQ(calls_of(device_call::alloc), taken);
  EXPECT_EQ(hazards(), 0U);
  EXPECT_EQ(cudaFreeAsync(q, t), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess) << "either free takes either memory";
  EXPECT_EQ(cudaStreamDestroy(t), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
}

// The call that TensorFlow and JAX make.
TEST_F(Preload, TheDefaultPoolIsServedByItsName) {
  const cudaStream_t s = new_stream();
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(of_driver<CUresult(CUmemoryPool*, CUdevice)>("cuDeviceGetDefaultMemPool")(&pool, 0), CUDA_SUCCESS);
  auto* const from_pool =
      of_driver<CUresult(CUdeviceptr*, std::size_t, CUmemoryPool, CUstream)>("cuMemAllocFromPoolAsync");
  CUdeviceptr at = 0;
  ASSERT_EQ(from_pool(&at, mib, pool, s), CUDA_SUCCESS);
  const std::uint64_t taken = used_bytes();
  EXPECT_GE(taken, 16 * mib) << "gpumem takes a segment, the driver's pool no more than was asked";
  ASSERT_EQ(cudaFreeAsync(reinterpret_cast<void*>(at), s), cudaSuccess);
  void* again = nullptr;
  ASSERT_EQ(cudaMallocAsync(&again, mib, s), cudaSuccess);
  EXPECT_EQ(reinterpret_cast<CUdeviceptr>(again), at) << "both names are one pool";
  EXPECT_EQ(used_bytes(), taken);
  EXPECT_EQ(from_pool(&at, mib, reinterpret_cast<CUmemoryPool>(s), s), CUDA_ERROR_INVALID_VALUE)
      << "the driver's to say";
  EXPECT_EQ(cudaFreeAsync(again, s), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
}

TEST_F(Preload, BlocksFreedOnADestroyedStreamAreNotReusedTooEarly) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  const cudaStream_t s = new_stream();
  void* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(&p, 40 * mib, s), cudaSuccess);
  handed_out(p, 40 * mib, s);
  use(s, 5'000'000, p, 40 * mib);
  given_back(p);
  ASSERT_EQ(cudaFreeAsync(p, s), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(s), cudaSuccess);
  const cudaStream_t same_handle = new_stream();
  void* q = nullptr;
  ASSERT_EQ(cudaMallocAsync(&q, 40 * mib, same_handle), cudaSuccess);
  handed_out(q, 40 * mib, same_handle);
  use(same_handle, 1000, q, 40 * mib);
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Preload, UnknownPointersAreTheDrivers) {
  static_cast<void>(malloc_of(mib));
  void* managed = nullptr;
  ASSERT_EQ(cudaMallocManaged(&managed, mib), cudaSuccess);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  void* host = nullptr;
  ASSERT_EQ(cudaMallocHost(&host, mib), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  int on_the_stack = 0;
  EXPECT_EQ(cudaFree(&on_the_stack), cudaErrorInvalidValue);
}

TEST_F(Preload, ASecondFreeIsAnError) {
  void* const p = malloc_of(mib);
  EXPECT_EQ(cudaFree(static_cast<char*>(p) + 512), cudaErrorInvalidValue) << "inside a block";
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue) << "the runtime keeps it as its last error";
}

TEST_F(Preload, ACaptureIsNotSpoilt) {
  const cudaStream_t s = new_stream();
  void* const before = malloc_of(mib);
  void* const freed = malloc_of(mib);
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocAsync(&pinned, mib, s), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(before, 0, mib, s), cudaSuccess);
  EXPECT_EQ(cudaFree(freed), cudaSuccess);
  std::vector<void*> meanwhile;
  for (int i = 0; i < 20; ++i) meanwhile.push_back(malloc_of(2 * mib));
  void* p = nullptr;
  EXPECT_EQ(cudaMallocAsync(&p, mib, s), cudaSuccess) << "a memory node of the driver's";
  const cudaStream_t beside = new_stream();
  EXPECT_EQ(cudaMallocAsync(&p, mib, beside), cudaSuccess) << "another stream is served";
  EXPECT_EQ(cudaFreeAsync(p, beside), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pinned, s), cudaErrorInvalidValue) << "a graph cannot free what it did not allocate";
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess) << "nothing spoilt it";
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (void* q : meanwhile) EXPECT_EQ(cudaFree(q), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(pinned, s), cudaSuccess) << "and afterwards all is as before";
  EXPECT_EQ(hazards(), 0U);
}

// The first allocation on the device is another thread's, which cannot name the stream that captures.
TEST_F(Preload, ACaptureOfAThreadsDefaultStreamHoldsForADeviceThatOpensLater) {
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);  // the context
  ASSERT_EQ(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed), cudaSuccess);
  const auto free_much = [] {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(cudaFree(malloc_of(4 * mib)), cudaSuccess);
  };
  std::thread{free_much}.join();
  EXPECT_EQ(calls_of(device_call::record_context), 0U) << "the capture is under way";
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(cudaStreamPerThread, &graph), cudaSuccess) << "spoilt";
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  std::thread{free_much}.join();
  EXPECT_GT(calls_of(device_call::record_context), 0U) << "it has ended";
}

TEST_F(Preload, FreeMemoryCanBeServed) {
  const auto [at_first, total] = memory();
  EXPECT_EQ(total, 1024 * mib);
  void* const p = malloc_of(100 * mib);
  EXPECT_EQ(memory().first, at_first - 100 * mib);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(memory().first, at_first) << "what lies idle in gpumem is free to the program";
  EXPECT_GE(used_bytes(), 100 * mib) << "though the driver does not have it";
}

TEST_F(Preload, ALimitIsTheProgramsOutOfMemory) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  EXPECT_LE(memory().first, 64 * mib);
  void* const p = malloc_of(48 * mib);
  void* q = nullptr;
  EXPECT_EQ(cudaMalloc(&q, 48 * mib), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&q, 48 * mib), cudaSuccess) << "nothing else is harmed";
}

TEST_F(Preload, OtherAllocationsDoNotFailWhileMemoryLiesIdle) {
  for (int i = 0; i < 2; ++i) {
    void* const p = malloc_of(900 * mib);
    ASSERT_EQ(cudaFree(p), cudaSuccess);
    void* managed = nullptr;
    ASSERT_EQ(cudaMallocManaged(&managed, 900 * mib), cudaSuccess) << "gpumem gives back what lies idle";
    ASSERT_EQ(cudaFree(managed), cudaSuccess);
  }
}

TEST_F(Preload, PitchedMemory) {
  void* p = nullptr;
  std::size_t pitch = 0;
  ASSERT_EQ(cudaMallocPitch(&p, &pitch, 1000, 64), cudaSuccess);
  EXPECT_EQ(pitch, 1024U);
  const std::uint64_t taken = calls_of(device_call::alloc);
  void* q = nullptr;
  ASSERT_EQ(cudaMallocPitch(&q, &pitch, 1000, 64), cudaSuccess);
  EXPECT_EQ(calls_of(device_call::alloc), taken) << "from the same segment";
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(q), cudaSuccess);
}

TEST_F(Preload, AResetTakesEverythingAndTheProgramGoesOn) {
  void* const p = malloc_of(mib);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(used_bytes(), 0U);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue) << "it went with the reset";
  void* const q = malloc_of(mib);
  EXPECT_EQ(cudaFree(q), cudaSuccess);
  EXPECT_GE(used_bytes(), mib) << "served again";
}

TEST_F(Preload, TwoDevices) {
  setenv("SIMCUDA_DEVICES", "2", 1);
  void* const first = malloc_of(mib);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* const second = malloc_of(mib);
  cudaPointerAttributes what{};
  ASSERT_EQ(cudaPointerGetAttributes(&what, second), cudaSuccess);
  EXPECT_EQ(what.device, 1);
  EXPECT_EQ(cudaFree(first), cudaSuccess) << "from whatever device is current";
  EXPECT_EQ(cudaFree(second), cudaSuccess);
}

/// By device: the free memory, asked of the double itself, past the shim.
std::vector<std::size_t> free_of(int devices) {
  auto* const retain = of_double<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
  auto* const release = of_double<CUresult(CUdevice)>("cuDevicePrimaryCtxRelease_v2");
  auto* const push = of_double<CUresult(CUcontext)>("cuCtxPushCurrent_v2");
  auto* const pop = of_double<CUresult(CUcontext*)>("cuCtxPopCurrent_v2");
  auto* const ask = of_double<CUresult(std::size_t*, std::size_t*)>("cuMemGetInfo_v2");
  std::vector<std::size_t> out;
  for (int i = 0; i < devices; ++i) {
    CUcontext context = nullptr;
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    EXPECT_EQ(retain(&context, i), CUDA_SUCCESS);
    EXPECT_EQ(push(context), CUDA_SUCCESS);
    EXPECT_EQ(ask(&free_bytes, &total_bytes), CUDA_SUCCESS);
    EXPECT_EQ(pop(&context), CUDA_SUCCESS);
    EXPECT_EQ(release(i), CUDA_SUCCESS);
    out.push_back(free_bytes / mib);
  }
  return out;
}

TEST_F(Preload, FirstUseUnderGrabAllTakesEveryVisibleDevice) {
  setenv("SIMCUDA_DEVICES", "3", 1);
  setenv("GPUMEM_POLICY", "grab_all", 1);
  setenv("GPUMEM_LIMIT", "768MiB", 1);
  setenv("GPUMEM_POLICY_2", "growth", 1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(memory().first, 768 * mib);
  EXPECT_THAT(free_of(3), testing::ElementsAre(1024, 1024, 1024)) << "asking is no use";
  void* const p = malloc_of(mib);
  EXPECT_THAT(free_of(3), testing::ElementsAre(256, 256, 1024)) << "of devices under grab_all";
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  void* const q = malloc_of(700 * mib);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(q), cudaSuccess);
  EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaFree(malloc_of(mib)), cudaSuccess) << "after a reset";
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Preload, FirstUseThatIsStreamOrderedTakesEveryVisibleDevice) {
  setenv("SIMCUDA_DEVICES", "2", 1);
  setenv("GPUMEM_POLICY", "grab_all", 1);
  setenv("GPUMEM_LIMIT", "768MiB", 1);
  const cudaStream_t here = new_stream();
  void* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(&p, mib, here), cudaSuccess);
  EXPECT_THAT(free_of(2), testing::ElementsAre(256, 256));
  EXPECT_EQ(cudaFreeAsync(p, here), cudaSuccess);
}

TEST_F(Preload, ADeviceThatFirstUseCannotTakeIsLoggedAndTheOneInUseServes) {
  setenv("SIMCUDA_DEVICES", "2", 1);
  setenv("GPUMEM_POLICY", "grab_all", 1);
  setenv("GPUMEM_LIMIT", "768MiB", 1);
  setenv("GPUMEM_LIMIT_1", "2GiB", 1);  // more than it has
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaFree(malloc_of(mib)), cudaSuccess);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("device 1 is not taken yet: GPUMEM_LIMIT_1=2GiB"));
  EXPECT_THAT(free_of(2), testing::ElementsAre(256, 1024));
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, mib), cudaErrorMemoryAllocation) << "its own use is told";
}

TEST_F(Preload, ManyThreadsThatUseDevicesFirstUnderGrabAll) {
  setenv("SIMCUDA_DEVICES", "3", 1);
  setenv("GPUMEM_POLICY", "grab_all", 1);
  setenv("GPUMEM_LIMIT", "512MiB", 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([t] {
      void* p = nullptr;
      ASSERT_EQ(cudaSetDevice(t % 3), cudaSuccess);
      ASSERT_EQ(cudaMalloc(&p, mib), cudaSuccess);
      ASSERT_EQ(cudaFree(p), cudaSuccess);
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_THAT(free_of(3), testing::ElementsAre(512, 512, 512));
}

TEST_F(Preload, StreamOrderedMemoryIsOfTheStreamsDevice) {
  setenv("SIMCUDA_DEVICES", "2", 1);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t there = new_stream();
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const cudaStream_t here = new_stream();
  void* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(&p, mib, there), cudaSuccess);
  cudaPointerAttributes what{};
  ASSERT_EQ(cudaPointerGetAttributes(&what, p), cudaSuccess);
  EXPECT_EQ(what.device, 1);
  EXPECT_EQ(cudaFreeAsync(p, here), cudaSuccess) << "on a stream of another device";
  void* again = nullptr;
  ASSERT_EQ(cudaMallocAsync(&again, mib, there), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(again, there), cudaSuccess);
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Preload, AForkedChildIsNotStuck) {
  void* const p = malloc_of(mib);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    void* q = nullptr;
    static_cast<void>(cudaMalloc(&q, mib));  // the driver's answer, of any kind
    static_cast<void>(cudaFree(p));
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(cudaFree(p), cudaSuccess) << "the parent is not disturbed";
}

TEST_F(Preload, ManyThreads) {
  setenv("GPUMEM_LIMIT", "256MiB", 1);
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      cudaStream_t s = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
      for (unsigned i = 0; i < 200; ++i) {
        void* p = nullptr;
        void* q = nullptr;
        const std::size_t bytes = ((i * 7 + t) % 30 + 1) * 256 * kib;
        ASSERT_EQ(cudaMalloc(&p, bytes), cudaSuccess);
        ASSERT_EQ(cudaMallocAsync(&q, bytes, s), cudaSuccess);
        use(s, 50'000, q, bytes);
        ASSERT_EQ(cudaFreeAsync(q, s), cudaSuccess);
        ASSERT_EQ(cudaFree(p), cudaSuccess);
      }
      ASSERT_EQ(cudaStreamDestroy(s), cudaSuccess);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Preload, ASettingThatCannotBeUsedFailsLoudly) {
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  setenv("GPUMEM_POOLS", "48MiB,48MiB", 1);
  void* p = nullptr;
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaMalloc(&p, mib), cudaErrorMemoryAllocation);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("every allocation fails until that is mended"));
}

TEST_F(Preload, WithoutADriverAProgramStartsAndIsToldSo) {
  setenv("GPUMEM_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1);
  void* p = nullptr;
  testing::internal::CaptureStderr();
  EXPECT_NE(cudaMalloc(&p, mib), cudaSuccess);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("/nowhere/libcuda.so.1"));
}

}  // namespace
}  // namespace gpumem::preload_test
