// The simulated CUDA runtime over the simulated driver, tested with public functions only, as a program uses them.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

// The variants that programs compiled with --default-stream per-thread call.
extern "C" cudaError_t CUDARTAPI cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long* id);

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class Simcudart : public testing::Test {
 protected:
  // Read by the driver's first call in this process.
  static void SetUpTestSuite() {
    setenv("SIMCUDA_DEVICES", "2", 1);
    setenv("SIMCUDA_BYTES", "256MiB", 1);
  }
  void TearDown() override {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    static_cast<void>(cudaGetLastError());
  }
};

TEST_F(Simcudart, VersionsAndDevices) {
  int version = 0;
  EXPECT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, CUDART_VERSION);
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 13000);
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
  EXPECT_EQ(properties.totalGlobalMem, 256 * mib);
  EXPECT_EQ(properties.warpSize, 32);
  EXPECT_NE(std::string_view(properties.name).find("simulated"), std::string_view::npos);
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 2), cudaErrorInvalidDevice);
}

TEST_F(Simcudart, MemoryKeepsCopiedValues) {
  std::vector<int> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::size_t bytes = numbers.size() * sizeof(int);
  void* a = nullptr;
  void* b = nullptr;
  ASSERT_EQ(cudaMalloc(&a, bytes), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&b, bytes), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(a, numbers.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(b, a, bytes, cudaMemcpyDefault), cudaSuccess);
  std::vector<int> back(1000);
  EXPECT_EQ(cudaMemcpy(back.data(), b, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(back, numbers);
  EXPECT_EQ(cudaMemset(b, 0xff, 8), cudaSuccess);
  EXPECT_EQ(cudaMemcpy2D(back.data(), sizeof(int), b, 2 * sizeof(int), sizeof(int), 3, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(back[0], -1);
  EXPECT_EQ(back[2], 4);
  EXPECT_EQ(cudaFree(a), cudaSuccess);
  EXPECT_EQ(cudaFree(b), cudaSuccess);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(b), cudaErrorInvalidValue);
}

TEST_F(Simcudart, AnErrorIsRememberedUntilItIsTaken) {
  void* p = &p;
  EXPECT_EQ(cudaMalloc(&p, 300 * mib), cudaErrorMemoryAllocation);
  EXPECT_EQ(p, nullptr);
  std::thread{[] { EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "each thread has its own"; }}.join();
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST_F(Simcudart, EventsAreNotReadyUntilTheWorkIsDone) {
  void* p = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaMalloc(&p, mib), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(p, 1, mib, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Simcudart, ThePerThreadVariantsHaveAStreamForEachThread) {
  const auto id = [](auto get) {
    unsigned long long value = 0;
    EXPECT_EQ(get(nullptr, &value), cudaSuccess);
    return value;
  };
  unsigned long long theirs = 0;
  std::thread{[&] { theirs = id(cudaStreamGetId_ptsz); }}.join();
  EXPECT_NE(id(cudaStreamGetId_ptsz), theirs);
  EXPECT_NE(id(cudaStreamGetId_ptsz), id(cudaStreamGetId));
  EXPECT_EQ(id(cudaStreamGetId_ptsz), id(cudaStreamGetId_ptsz));
}

TEST_F(Simcudart, AnAllocationSpoilsAGlobalCapture) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  void* p = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, mib), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, mib), cudaSuccess);
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Simcudart, AGraphKeepsItsObjectsUntilItAndItsInstancesAreDestroyed) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  EXPECT_EQ(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_NE(id, 0U);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  int destroyed = 0;
  cudaUserObject_t object = nullptr;
  ASSERT_EQ(cudaUserObjectCreate(
                &object, &destroyed, [](void* p) { ++*static_cast<int*>(p); }, 1, cudaUserObjectNoDestructorSync),
            cudaSuccess);
  ASSERT_EQ(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  for (int i = 0; i < 4; ++i) static_cast<void>(cudaStreamQuery(nullptr));  // it runs some calls later
  EXPECT_EQ(destroyed, 1);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Simcudart, TheStreamOrderedPoolKeepsMemoryUpToItsThreshold) {
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  std::uint64_t threshold = UINT64_MAX;
  ASSERT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), cudaSuccess);
  void* p = nullptr;
  ASSERT_EQ(cudaMallocAsync(&p, mib, nullptr), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::uint64_t reserved = 0;
  ASSERT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), cudaSuccess);
  EXPECT_GE(reserved, mib);
  ASSERT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  ASSERT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved), cudaSuccess);
  EXPECT_EQ(reserved, 0U);
}

TEST_F(Simcudart, PointersOfEachKind) {
  void* plain = nullptr;
  void* pinned = nullptr;
  void* managed = nullptr;
  ASSERT_EQ(cudaMalloc(&plain, mib), cudaSuccess);
  ASSERT_EQ(cudaMallocHost(&pinned, mib), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&managed, mib, cudaMemAttachGlobal), cudaSuccess);
  const auto type = [](const void* p) {
    cudaPointerAttributes a;
    EXPECT_EQ(cudaPointerGetAttributes(&a, p), cudaSuccess);
    return a.type;
  };
  EXPECT_EQ(type(plain), cudaMemoryTypeDevice);
  EXPECT_EQ(type(pinned), cudaMemoryTypeHost);
  EXPECT_EQ(type(managed), cudaMemoryTypeManaged);
  EXPECT_EQ(type(&plain), cudaMemoryTypeUnregistered);
  static_cast<int*>(managed)[5] = 7;
  static_cast<int*>(pinned)[5] = 7;
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFree(plain), cudaSuccess);
}

TEST_F(Simcudart, EachDeviceHasItsMemory) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  void* p = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  ASSERT_EQ(cudaMalloc(&p, 64 * mib), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(free_bytes, 192 * mib);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(free_bytes, 256 * mib);
  EXPECT_EQ(cudaFree(p), cudaSuccess) << "from the other device";
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
}

TEST_F(Simcudart, AResetTakesTheMemoryAndTheNextCallWorks) {
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, mib), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMalloc(&p, 256 * mib), cudaSuccess) << "all of it is free again";
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST_F(Simcudart, DriverFunctionsByNameAndVersion) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult how = cudaDriverEntryPointSymbolNotFound;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12040, cudaEnableDefault, &how), cudaSuccess);
  EXPECT_EQ(how, cudaDriverEntryPointSuccess);
  EXPECT_NE(function, nullptr);
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuCtxRecordEvent", &function, 12040, cudaEnableDefault, &how),
            cudaSuccess);
  EXPECT_EQ(how, cudaDriverEntryPointVersionNotSufficent);
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12040, cudaEnableDefault, &how),
            cudaSuccess);
  EXPECT_EQ(how, cudaDriverEntryPointSymbolNotFound);
}

TEST_F(Simcudart, HostFunctionsRun) {
  int ran = 0;
  EXPECT_EQ(cudaLaunchHostFunc(
                nullptr, [](void* p) { ++*static_cast<int*>(p); }, &ran),
            cudaSuccess);
  EXPECT_EQ(cudaStreamAddCallback(
                nullptr, [](cudaStream_t, cudaError_t, void* p) { ++*static_cast<int*>(p); }, &ran, 0),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(ran, 2);
}

TEST_F(Simcudart, FunctionsThatAreNotModelledReturnNotSupported) {
  EXPECT_EQ(cudaDeviceDisablePeerAccess(0), cudaErrorNotSupported);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  int not_a_kernel = 0;
  EXPECT_EQ(cudaLaunchKernel(&not_a_kernel, dim3{1}, dim3{1}, nullptr, 0, nullptr), cudaErrorInvalidDeviceFunction);
}

}  // namespace
