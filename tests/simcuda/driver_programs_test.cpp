// Functions of the simulated driver for programs: per-thread default streams, pointer attributes, handles, the device's
// pool.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <thread>

#include "bits.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

class SimcudaPrograms : public testing::Test {
 protected:
  void SetUp() override {
    simcuda::configure({.devices = 2, .bytes = 64 * mib, .host_memory = true});
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }

  template <typename Pointer>
  static Pointer function(const char* name, int version, cuuint64_t flags) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult how = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    EXPECT_EQ(cuGetProcAddress(name, &found, version, flags, &how), CUDA_SUCCESS);
    EXPECT_EQ(how, CU_GET_PROC_ADDRESS_SUCCESS) << name;
    return reinterpret_cast<Pointer>(found);
  }
};

unsigned long long id_of(PFN_cuStreamGetId_v12000 get_id, CUstream s) {
  unsigned long long id = 0;
  EXPECT_EQ(get_id(s, &id), CUDA_SUCCESS);
  return id;
}

TEST_F(SimcudaPrograms, TheNullStreamOfAPerThreadVariantIsTheThreadsOwn) {
  const auto plain = function<PFN_cuStreamGetId_v12000>("cuStreamGetId", 12000, CU_GET_PROC_ADDRESS_DEFAULT);
  const auto variant =
      function<PFN_cuStreamGetId_v12000>("cuStreamGetId", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  EXPECT_EQ(id_of(plain, nullptr), id_of(plain, CU_STREAM_LEGACY));
  EXPECT_EQ(id_of(variant, nullptr), id_of(plain, CU_STREAM_PER_THREAD));
  EXPECT_NE(id_of(variant, nullptr), id_of(plain, nullptr));
  EXPECT_EQ(id_of(variant, CU_STREAM_LEGACY), id_of(plain, nullptr));
  const unsigned long long mine = id_of(variant, nullptr);
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::thread{[&] {
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_NE(id_of(variant, nullptr), mine);
  }}.join();
}

TEST_F(SimcudaPrograms, AFunctionWithoutVariantIsTheSameUnderBothFlags) {
  EXPECT_EQ(function<void*>("cuMemAlloc", 3020, CU_GET_PROC_ADDRESS_DEFAULT),
            function<void*>("cuMemAlloc", 3020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
}

TEST_F(SimcudaPrograms, RegisteredHostMemoryIsPinned) {
  std::array<std::byte, 64> own{};
  const auto at = reinterpret_cast<CUdeviceptr>(own.data());
  const auto type = [&](std::size_t offset) {
    unsigned int found = 0;
    const CUresult e = cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + offset);
    return e == CUDA_SUCCESS ? found : 0;
  };
  EXPECT_EQ(type(0), 0U);
  ASSERT_EQ(cuMemHostRegister(own.data(), 48, 0), CUDA_SUCCESS);
  EXPECT_EQ(type(0), unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(type(47), unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(type(48), 0U);
  EXPECT_EQ(cuMemHostRegister(own.data() + 40, 16, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) << "a part of it";
  EXPECT_EQ(cuMemHostRegister(own.data() + 48, 16, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(own.data() + 48), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(own.data()), CUDA_SUCCESS);
  EXPECT_EQ(type(0), 0U);
  EXPECT_EQ(cuMemHostUnregister(own.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorString(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "pointer does not correspond to a registered memory region");
}

TEST_F(SimcudaPrograms, PointersAreKnownByTheirAllocation) {
  CUdeviceptr plain = 0;
  CUdeviceptr managed = 0;
  void* pinned = nullptr;
  ASSERT_EQ(cuMemAlloc(&plain, 3 * mib), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocManaged(&managed, mib, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostAlloc(&pinned, mib, 0), CUDA_SUCCESS);
  const auto type_of = [](CUdeviceptr at) {
    unsigned int type = 99;
    unsigned int is_managed = 99;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* data[] = {&type, &is_managed};
    EXPECT_EQ(cuPointerGetAttributes(2, which, data, at), CUDA_SUCCESS);
    return std::pair{type, is_managed};
  };
  EXPECT_EQ(type_of(plain + mib), std::pair(unsigned{CU_MEMORYTYPE_DEVICE}, 0U));
  EXPECT_EQ(type_of(managed), std::pair(unsigned{CU_MEMORYTYPE_DEVICE}, 1U));
  EXPECT_EQ(type_of(reinterpret_cast<CUdeviceptr>(pinned) + 5), std::pair(unsigned{CU_MEMORYTYPE_HOST}, 0U));
  int on_stack = 0;
  EXPECT_EQ(type_of(reinterpret_cast<CUdeviceptr>(&on_stack)), std::pair(0U, 0U));
  EXPECT_EQ(cuPointerGetAttribute(&on_stack, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4096), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr begin = 0;
  EXPECT_EQ(cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, plain + mib), CUDA_SUCCESS);
  EXPECT_EQ(begin, plain);
  EXPECT_EQ(cuMemFree(plain), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(managed), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(type_of(managed), std::pair(0U, 0U));
}

TEST_F(SimcudaPrograms, PointersIntoMappedPagesAreKnown) {
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle pages = 0;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  ASSERT_EQ(cuMemAddressReserve(&range, 8 * mib, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&pages, 4 * mib, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range, 4 * mib, 0, pages, 0), CUDA_SUCCESS);
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range + mib), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, range + 3 * mib), CUDA_SUCCESS);
  EXPECT_EQ(base, range);
  EXPECT_EQ(bytes, 4 * mib);
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, range + 5 * mib), CUDA_ERROR_NOT_FOUND);
  CUipcMemHandle handle;
  EXPECT_EQ(cuIpcGetMemHandle(&handle, range), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(range, 4 * mib), CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(pages), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range, 8 * mib), CUDA_SUCCESS);
}

TEST_F(SimcudaPrograms, PagesOfTheHostTakeNoMemoryOfTheCard) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
  prop.location.id = 77;  // ignored
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle pages = 0;
  std::size_t before = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cuMemGetInfo(&before, &total), CUDA_SUCCESS);
  const std::size_t bytes = total + 64 * mib;  // more than the card has
  ASSERT_EQ(cuMemAddressReserve(&range, bytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&pages, bytes, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range, bytes, 0, pages, 0), CUDA_SUCCESS);
  std::array<CUmemAccessDesc, 2> access{};
  access[0] = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  access[1] = {{CU_MEM_LOCATION_TYPE_HOST, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  unsigned long long flags = 0;
  ASSERT_EQ(cuMemSetAccess(range, bytes, access.data(), 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAccess(&flags, &access[1].location, range), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_NONE));
  ASSERT_EQ(cuMemSetAccess(range, bytes, access.data(), 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAccess(&flags, &access[1].location, range), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  ASSERT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, before);

  *reinterpret_cast<int*>(static_cast<std::uintptr_t>(range + bytes - 4)) = 42;
  int copied = 0;
  EXPECT_EQ(cuMemcpyDtoH(&copied, range + bytes - 4, sizeof copied), CUDA_SUCCESS);
  EXPECT_EQ(copied, 42);
  unsigned int type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range), CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned int>(CU_MEMORYTYPE_HOST));
  CUmemAllocationProp found{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, pages), CUDA_SUCCESS);
  EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_HOST);

  EXPECT_EQ(cuMemRelease(pages), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(range, bytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range, bytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
  EXPECT_EQ(free, before);
}

TEST_F(SimcudaPrograms, PagesOfTheHostAreRefusedAsDocumented) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemGenericAllocationHandle pages = 0;
  const auto create = [&](CUmemLocationType type, int node, CUmemAllocationHandleType handles) {
    prop.location.type = type;
    prop.location.id = node;
    prop.requestedHandleTypes = handles;
    const CUresult made = cuMemCreate(&pages, 2 * mib, &prop, 0);
    if (made == CUDA_SUCCESS) {
      EXPECT_EQ(cuMemRelease(pages), CUDA_SUCCESS);
    }
    return made;
  };
  const auto none = CU_MEM_HANDLE_TYPE_NONE;
  const auto file = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(create(CU_MEM_LOCATION_TYPE_HOST, 0, none), CUDA_SUCCESS);
  EXPECT_EQ(create(CU_MEM_LOCATION_TYPE_HOST, 0, file), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, none), CUDA_SUCCESS);
  EXPECT_EQ(create(CU_MEM_LOCATION_TYPE_HOST_NUMA, 1 << 20, none), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, none), CUDA_ERROR_INVALID_VALUE);

  // The host has access to its own memory alone.
  CUdeviceptr range = 0;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = none;
  ASSERT_EQ(cuMemAddressReserve(&range, 2 * mib, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&pages, 2 * mib, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range, 2 * mib, 0, pages, 0), CUDA_SUCCESS);
  const CUmemAccessDesc host{{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(cuMemSetAccess(range, 2 * mib, &host, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(range, 2 * mib), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(pages), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range, 2 * mib), CUDA_SUCCESS);
}

TEST_F(SimcudaPrograms, LinkedCodeLoadsAsAModule) {
  CUlinkState state = nullptr;
  char source[] = "code";
  ASSERT_EQ(cuLinkCreate(0, nullptr, nullptr, &state), CUDA_SUCCESS);
  EXPECT_EQ(cuLinkAddData(state, CU_JIT_INPUT_PTX, source, sizeof source, "name", 0, nullptr, nullptr), CUDA_SUCCESS);
  void* code = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(cuLinkComplete(state, &code, &bytes), CUDA_SUCCESS);
  EXPECT_GT(bytes, 0U);
  static CUmodule module = nullptr;  // the simulated driver keeps it as long as the process
  ASSERT_EQ(cuModuleLoadData(&module, code), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuLinkDestroy(state), CUDA_SUCCESS);
}

TEST_F(SimcudaPrograms, PinnedMemoryIsFreedFromAnyContext) {
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, mib, 0), CUDA_SUCCESS);
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimcudaPrograms, HandlesForOtherProcessesNameTheAllocation) {
  CUdeviceptr plain = 0;
  CUdeviceptr pooled = 0;
  ASSERT_EQ(cuMemAlloc(&plain, 4 * mib), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&pooled, mib, nullptr), CUDA_SUCCESS);
  CUipcMemHandle of_begin;
  CUipcMemHandle of_middle;
  EXPECT_EQ(cuIpcGetMemHandle(&of_begin, plain), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcGetMemHandle(&of_middle, plain + mib), CUDA_SUCCESS);
  EXPECT_EQ(std::string_view(of_begin.reserved, sizeof of_begin),
            std::string_view(of_middle.reserved, sizeof of_middle));
  EXPECT_EQ(cuIpcGetMemHandle(&of_begin, pooled), CUDA_ERROR_INVALID_VALUE) << "memory of a pool has none";
}

TEST_F(SimcudaPrograms, ADeviceHasOnePool) {
  CUmemoryPool mine = nullptr;
  CUmemoryPool others = nullptr;
  ASSERT_EQ(cuDeviceGetMemPool(&mine, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetMemPool(&others, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceSetMemPool(0, mine), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceSetMemPool(0, others), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&at, mib, mine, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&at, mib, others, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimcudaPrograms, StreamsRememberHowTheyWereMade) {
  CUstream s = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -3), CUDA_SUCCESS);
  unsigned int flags = 0;
  int priority = 0;
  EXPECT_EQ(cuStreamGetFlags(s, &flags), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamGetPriority(s, &priority), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(priority, -3);
  EXPECT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
}

TEST_F(SimcudaPrograms, EventsMeasureTheWorkBetweenThem) {
  CUdeviceptr at = 0;
  CUstream s = nullptr;
  CUevent begin = nullptr;
  CUevent end = nullptr;
  CUevent untimed = nullptr;
  ASSERT_EQ(cuMemAlloc(&at, 4 * mib), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&begin, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&end, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  float ms = -1;
  EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_INVALID_HANDLE) << "not recorded";
  ASSERT_EQ(cuEventRecord(begin, s), CUDA_SUCCESS);
  simcuda::use(s, 2'000'000, at, 4 * mib);
  ASSERT_EQ(cuEventRecord(end, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(untimed, s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
  EXPECT_NEAR(ms, 2.0F, 0.01F);
  EXPECT_EQ(cuEventElapsedTime(&ms, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
  // As exactly after a thousand seconds, whose nanoseconds a float does not hold.
  simcuda::use(s, 1'000'000'000'000, at, 4 * mib);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(begin, s), CUDA_SUCCESS);
  simcuda::use(s, 10'000, at, 4 * mib);
  ASSERT_EQ(cuEventRecord(end, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_SUCCESS);
  EXPECT_NEAR(ms, 0.01F, 0.001F);
}

TEST_F(SimcudaPrograms, AGraphCopiesAndCallsAtEachLaunch) {
  CUdeviceptr at = 0;
  CUstream s = nullptr;
  ASSERT_EQ(cuMemAlloc(&at, mib), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(at, 1, 16), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  unsigned char there = 0;
  int called = 0;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(&there, at, 1, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(at, 2, 16, s), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchHostFunc(
                s, [](void* p) { ++*static_cast<int*>(p); }, &called),
            CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
  EXPECT_EQ(there, 0) << "nothing ran yet";
  EXPECT_EQ(called, 0);
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
  EXPECT_EQ(there, 1);
  EXPECT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
  EXPECT_EQ(there, 2);
  EXPECT_EQ(called, 2);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(SimcudaPrograms, AStreamJoinsACaptureByWaitingForIt) {
  CUstream origin = nullptr;
  CUstream joined = nullptr;
  CUevent fork = nullptr;
  CUevent join = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  const auto status = [&] {
    CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(joined, &now), CUDA_SUCCESS);
    return now;
  };
  for (const bool comes_back : {true, false}) {
    ASSERT_EQ(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(fork, origin), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(joined, fork, 0), CUDA_SUCCESS);
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(cuStreamEndCapture(joined, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (comes_back) {
      EXPECT_EQ(cuEventRecord(join, joined), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamWaitEvent(origin, join, 0), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuStreamEndCapture(origin, &graph), comes_back ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_EQ(graph != nullptr, comes_back);
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_NONE);
    if (graph != nullptr) {
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    }
  }
  EXPECT_EQ(cuEventQuery(fork), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(cuStreamWaitEvent(joined, fork, 0), CUDA_ERROR_CAPTURED_EVENT) << "its capture is over";
}

TEST_F(SimcudaPrograms, TheRefereeSeesCopiesOfFreedMemory) {
  simcuda::configure({.devices = 1, .bytes = 64 * mib});
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 4 * mib), CUDA_SUCCESS);
  const char text[] = "text";
  EXPECT_EQ(cuMemcpyHtoD(at, text, sizeof text), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::device(0).hazard_count(), 0U);
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(at, text, sizeof text), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::device(0).hazard_count(), 1U);
}

}  // namespace
}  // namespace gpumem
