/// A program of the driver API with the shim: linked names, functions from cuGetProcAddress, and queries of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "driver_program.hpp"
#include "temporary_folder.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class Driver : public driver_program {};

TEST_F(Driver, LinkedAndHandedOutFunctionsAreTheSame) {
  begin();
  const auto linked_alloc = linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2");
  const auto asked_alloc = asked<PFN_cuMemAlloc_v3020>("cuMemAlloc", 3020);
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  ASSERT_EQ(linked_alloc(&a, 4096), CUDA_SUCCESS);
  ASSERT_EQ(asked_alloc(&b, 4096), CUDA_SUCCESS);
  EXPECT_EQ(calls_of(device_call::alloc), 1U) << "both out of one segment";
  const auto newer = asked<PFN_cuMemAlloc_v3020>("cuMemAlloc", 13000);
  EXPECT_EQ(newer, asked_alloc) << "the same function under a newer version";
  const auto again = asked<PFN_cuGetProcAddress_v12000>("cuGetProcAddress", 12000);
  void* found = nullptr;
  ASSERT_EQ(again("cuMemFree", &found, 3020, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(found, reinterpret_cast<void*>(asked<PFN_cuMemFree_v3020>("cuMemFree", 3020)));
  EXPECT_EQ(reinterpret_cast<PFN_cuMemFree_v3020>(found)(a), CUDA_SUCCESS);
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(b), CUDA_SUCCESS);
  EXPECT_EQ(calls_of(device_call::free), 0U);
}

// As a program that links gpumem: front/logical_devices.hpp has the rule.
TEST_F(Driver, SecondDeviceWritesItsTraceAndStatisticsBesideThoseOfTheFirst) {
  const temporary_folder folder;
  setenv("SIMCUDA_DEVICES", "2", 1);
  setenv("GPUMEM_TRACE", folder.path(".run.csv").c_str(), 1);
  setenv("GPUMEM_STATS", folder.path("run.json").c_str(), 1);
  begin();
  CUcontext second = nullptr;
  ASSERT_EQ(linked<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&second, 1), CUDA_SUCCESS);
  ASSERT_EQ(linked<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(second), CUDA_SUCCESS);
  allocate(4096);
  EXPECT_TRUE(std::filesystem::exists(folder.path(".run.1.csv")));
  EXPECT_TRUE(std::filesystem::exists(folder.path("run.1.json")));
}

TEST_F(Driver, APerThreadRequestGetsThePerThreadVariant) {
  begin();
  const auto legacy = asked<PFN_cuMemAllocAsync_v11020>("cuMemAllocAsync", 11020, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
  const auto per_thread =
      asked<PFN_cuMemAllocAsync_v11020>("cuMemAllocAsync", 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  EXPECT_NE(legacy, per_thread);
  CUdeviceptr at = 0;
  ASSERT_EQ(per_thread(&at, mib, nullptr), CUDA_SUCCESS);
  // Freed on the thread's own stream: that stream may reuse it at once, the legacy stream only behind a fence.
  handed_out(reinterpret_cast<void*>(at), mib, CU_STREAM_PER_THREAD);
  use(CU_STREAM_PER_THREAD, 5'000'000, reinterpret_cast<void*>(at), mib);
  given_back(reinterpret_cast<void*>(at));
  const auto free_async =
      asked<PFN_cuMemFreeAsync_v11020>("cuMemFreeAsync", 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  ASSERT_EQ(free_async(at, nullptr), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  ASSERT_EQ(per_thread(&again, mib, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(again, at);
  EXPECT_EQ(calls_of(device_call::record_context), 0U);
  EXPECT_EQ(calls_of(device_call::record), 1U) << "on the thread's own stream, which the free names";
  EXPECT_EQ(hazards(), 0U);
}

TEST_F(Driver, AMissingFunctionIsMissingAsInTheDriver) {
  begin();
  const auto ask = linked<PFN_cuGetProcAddress_v12000>("cuGetProcAddress_v2");
  void* found = &found;
  CUdriverProcAddressQueryResult how{};
  EXPECT_EQ(ask("cuNoSuchFunction", &found, 13000, 0, &how), CUDA_SUCCESS);
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(how, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR what{};
  EXPECT_EQ(linked<PFN_cuArrayCreate_v3020>("cuArrayCreate_v2")(&array, &what), CUDA_ERROR_NOT_SUPPORTED)
      << "the name is there, and the double has no such function";
}

TEST_F(Driver, AQuestionAboutABlockIsNotAnsweredWithItsSegment) {
  begin();
  static_cast<void>(allocate(1000));
  const CUdeviceptr at = allocate(5000);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const auto range = linked<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange_v2");
  ASSERT_EQ(range(&base, &bytes, at + 100), CUDA_SUCCESS);
  EXPECT_EQ(base, at);
  EXPECT_EQ(bytes, 5000U);
  const auto attribute = linked<PFN_cuPointerGetAttribute_v4000>("cuPointerGetAttribute");
  ASSERT_EQ(attribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 100), CUDA_SUCCESS);
  EXPECT_EQ(base, at);
  int shareable = 1;
  CUmemorytype type{};
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* values[] = {&bytes, &type};
  ASSERT_EQ(linked<PFN_cuPointerGetAttributes_v7000>("cuPointerGetAttributes")(2, which, values, at + 100),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, 5000U);
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE) << "what does not differ is the driver's answer";
  static_cast<void>(shareable);
}

// CUDA's runtime makes the primary context current before its first use; the driver then answers 709.
TEST_F(Driver, AContextThatDoesNotLiveYetSpoilsNoLimit) {
  setenv("GPUMEM_LIMIT_SCOPE", "process", 1);
  setenv("GPUMEM_LIMIT", "600MiB", 1);
  setenv("GPUMEM_HEADROOM", "16MiB", 1);
  begin();
  ASSERT_EQ(linked<PFN_cuDevicePrimaryCtxRelease_v11000>("cuDevicePrimaryCtxRelease_v2")(0), CUDA_SUCCESS);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  testing::internal::CaptureStderr();
  EXPECT_EQ(linked<PFN_cuMemGetInfo_v3020>("cuMemGetInfo_v2")(&free_bytes, &total_bytes),
            CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUdeviceptr at = 0;
  EXPECT_EQ(linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&at, mib), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  begin();
  EXPECT_NE(allocate(mib), 0U);
}

TEST_F(Driver, ABufferIdNeverComesTwice) {
  begin();
  const auto attribute = linked<PFN_cuPointerGetAttribute_v4000>("cuPointerGetAttribute");
  const auto free_of = linked<PFN_cuMemFree_v3020>("cuMemFree_v2");
  unsigned long long first = 0;
  unsigned long long inside = 0;
  unsigned long long second = 0;
  const CUdeviceptr at = allocate(mib);
  ASSERT_EQ(attribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), CUDA_SUCCESS);
  ASSERT_EQ(attribute(&inside, CU_POINTER_ATTRIBUTE_BUFFER_ID, at + 512), CUDA_SUCCESS);
  EXPECT_EQ(first, inside);
  ASSERT_EQ(free_of(at), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  for (int i = 0; i < 64 && again != at; ++i) again = allocate(mib);
  ASSERT_EQ(again, at) << "the address is used again";
  ASSERT_EQ(attribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, again), CUDA_SUCCESS);
  EXPECT_NE(first, second);
}

TEST_F(Driver, AHandleOfABlockInsideASegmentIsRefusedLoudly) {
  begin();
  const CUdeviceptr at = allocate(mib);
  CUipcMemHandle handle{};
  testing::internal::CaptureStderr();
  EXPECT_EQ(linked<PFN_cuIpcGetMemHandle_v4010>("cuIpcGetMemHandle")(&handle, at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("set GPUMEM_IPC=1"));
}

/// The message when a handle is refused under these settings.
class MappedMemory : public Driver {
 protected:
  static std::string refusal() {
    begin();
    CUipcMemHandle handle{};
    const CUdeviceptr at = allocate(mib);
    testing::internal::CaptureStderr();
    EXPECT_EQ(linked<PFN_cuIpcGetMemHandle_v4010>("cuIpcGetMemHandle")(&handle, at), CUDA_ERROR_INVALID_VALUE);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(MappedMemory, ARefusedHandleNamesTheVariableThatMaps) {
  setenv("GPUMEM_BACKING", "mapped", 1);
  EXPECT_THAT(refusal(), testing::HasSubstr("refused, GPUMEM_BACKING=mapped maps its pages"));
}

TEST_F(MappedMemory, ARefusedHandleNamesThePolicyThatMaps) {
  setenv("GPUMEM_POLICY", "growth:backing=mapped", 1);
  EXPECT_THAT(refusal(), testing::HasSubstr("refused, policy growth:backing=mapped maps its pages"));
}

TEST_F(MappedMemory, ARefusedHandleNamesThePolicyThatAlwaysMaps) {
  setenv("GPUMEM_POLICY", "expandable", 1);
  EXPECT_THAT(refusal(), testing::HasSubstr("refused, policy expandable maps its pages"));
}

TEST_F(Driver, UnderIpcEachAllocationCanBeShared) {
  setenv("GPUMEM_IPC", "1", 1);
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  begin();
  const CUdeviceptr at = allocate(8 * mib);
  CUipcMemHandle handle{};
  ASSERT_EQ(linked<PFN_cuIpcGetMemHandle_v4010>("cuIpcGetMemHandle")(&handle, at), CUDA_SUCCESS);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  ASSERT_EQ(linked<PFN_cuMemGetAddressRange_v3020>("cuMemGetAddressRange_v2")(&base, &bytes, at), CUDA_SUCCESS);
  EXPECT_EQ(base, at);
  EXPECT_EQ(bytes, 8 * mib);
  CUdeviceptr more = 0;
  EXPECT_EQ(linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&more, 60 * mib), CUDA_ERROR_OUT_OF_MEMORY)
      << "the limit holds for them, too";
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(at), CUDA_SUCCESS);
  EXPECT_EQ(linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&more, 60 * mib), CUDA_SUCCESS);
}

// Before CUDA 12.5 there is no event on a context, so cudaFree waits itself, as the driver's does.
TEST_F(Driver, AnOldDriverWaitsInTheFree) {
  setenv("SIMCUDA_DRIVER_VERSION", "12020", 1);
  begin();
  const CUdeviceptr at = allocate(40 * mib);
  CUstream s = nullptr;
  ASSERT_EQ(linked<PFN_cuStreamCreate_v2000>("cuStreamCreate")(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  handed_out(reinterpret_cast<void*>(at), 40 * mib, nullptr);
  use(s, 5'000'000, reinterpret_cast<void*>(at), 40 * mib);
  given_back(reinterpret_cast<void*>(at));
  ASSERT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(at), CUDA_SUCCESS);
  EXPECT_GE(calls_of(device_call::synchronize), 1U);
  const CUdeviceptr again = allocate(40 * mib);
  CUstream t = nullptr;
  ASSERT_EQ(linked<PFN_cuStreamCreate_v2000>("cuStreamCreate")(&t, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  handed_out(reinterpret_cast<void*>(again), 40 * mib, t);
  use(t, 1000, reinterpret_cast<void*>(again), 40 * mib);
  EXPECT_EQ(hazards(), 0U);
  EXPECT_EQ(again, at);
}

TEST_F(Driver, AnOldDriverParksBlocksFreedDuringACapture) {
  setenv("SIMCUDA_DRIVER_VERSION", "12020", 1);
  setenv("GPUMEM_LIMIT", "64MiB", 1);
  begin();
  const CUdeviceptr at = allocate(40 * mib);
  const CUdeviceptr other = allocate(mib);
  CUstream s = nullptr;
  ASSERT_EQ(linked<PFN_cuStreamCreate_v2000>("cuStreamCreate")(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(linked<PFN_cuStreamBeginCapture_v10010>("cuStreamBeginCapture_v2")(s, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(at), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(linked<PFN_cuStreamEndCapture_v10000>("cuStreamEndCapture")(s, &graph), CUDA_SUCCESS);
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(other), CUDA_SUCCESS);
  EXPECT_EQ(allocate(40 * mib), at);
}

TEST_F(Driver, ADriverThatIsTooOldIsLeftAlone) {
  setenv("SIMCUDA_DRIVER_VERSION", "11040", 1);
  begin();
  const CUdeviceptr at = allocate(mib);
  EXPECT_NE(at, 0U);
  CUipcMemHandle handle{};
  EXPECT_EQ(linked<PFN_cuIpcGetMemHandle_v4010>("cuIpcGetMemHandle")(&handle, at), CUDA_SUCCESS)
      << "an allocation of the driver's";
  EXPECT_EQ(linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(at), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpumem::preload_test
