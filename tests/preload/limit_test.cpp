/// GPUMEM_LIMIT_SCOPE=process: one limit for all device memory of the process, whichever call allocates it.
#include <gmock/gmock.h>

#include <thread>
#include <vector>

#include "driver_program.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// 1 GiB of device, a limit of 256 MiB, a context of 32 MiB, a headroom of 16 MiB: 208 MiB for the program.
class Limit : public driver_program {
 protected:
  void SetUp() override {
    driver_program::SetUp();
    setenv("GPUMEM_LIMIT", "256MiB", 1);
    setenv("GPUMEM_LIMIT_SCOPE", "process", 1);
    setenv("GPUMEM_HEADROOM", "16MiB", 1);
    setenv("SIMCUDA_CONTEXT_BYTES", "32MiB", 1);
  }
  static CUresult try_allocate(CUdeviceptr* at, std::size_t bytes) {
    return linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(at, bytes);
  }
  static CUresult try_managed(CUdeviceptr* at, std::size_t bytes) {
    return linked<PFN_cuMemAllocManaged_v6000>("cuMemAllocManaged")(at, bytes, CU_MEM_ATTACH_GLOBAL);
  }
  static CUresult give_back(CUdeviceptr at) { return linked<PFN_cuMemFree_v3020>("cuMemFree_v2")(at); }
  static CUresult try_pages(CUmemGenericAllocationHandle* pages, std::size_t bytes) {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    return linked<PFN_cuMemCreate_v10020>("cuMemCreate")(pages, bytes, &what, 0);
  }
  static std::pair<std::size_t, std::size_t> memory() {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    EXPECT_EQ(linked<PFN_cuMemGetInfo_v3020>("cuMemGetInfo_v2")(&free_bytes, &total_bytes), CUDA_SUCCESS);
    return {free_bytes, total_bytes};
  }
};

TEST_F(Limit, TheProgramSeesTheLimitAsItsDevice) {
  begin();
  EXPECT_EQ(memory(), std::pair(208 * mib, 256 * mib));
  std::size_t total = 0;
  ASSERT_EQ(linked<PFN_cuDeviceTotalMem_v3020>("cuDeviceTotalMem_v2")(&total, 0), CUDA_SUCCESS);
  EXPECT_EQ(total, 256 * mib);
  const CUdeviceptr at = allocate(100 * mib);
  EXPECT_EQ(memory().first, 108 * mib);
  CUdeviceptr managed = 0;
  ASSERT_EQ(try_managed(&managed, 50 * mib), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 58 * mib);
  EXPECT_EQ(give_back(managed), CUDA_SUCCESS);
  EXPECT_EQ(give_back(at), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 208 * mib);
}

TEST_F(Limit, AllocationsPastGpumemCount) {
  begin();
  CUdeviceptr managed = 0;
  ASSERT_EQ(try_managed(&managed, 150 * mib), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(try_allocate(&at, 60 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_allocate(&at, 50 * mib), CUDA_SUCCESS) << "nothing else is harmed";
  CUdeviceptr more = 0;
  EXPECT_EQ(try_managed(&more, 20 * mib), CUDA_ERROR_OUT_OF_MEMORY) << "and the other way round";
  EXPECT_EQ(give_back(managed), CUDA_SUCCESS);
  EXPECT_EQ(try_managed(&more, 20 * mib), CUDA_SUCCESS);
  EXPECT_LE(used_bytes(), 256 * mib);
}

TEST_F(Limit, IdleMemoryMakesRoomForOthers) {
  begin();
  CUdeviceptr at = allocate(180 * mib);
  ASSERT_EQ(give_back(at), CUDA_SUCCESS);
  EXPECT_GE(used_bytes(), 200 * mib) << "it lies idle in the pool";
  CUdeviceptr managed = 0;
  EXPECT_EQ(try_managed(&managed, 180 * mib), CUDA_SUCCESS);
  EXPECT_LE(used_bytes(), 256 * mib);
}

TEST_F(Limit, ARefusedRequestChangesNothing) {
  begin();
  const CUdeviceptr at = allocate(100 * mib);
  CUdeviceptr managed = 0;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(try_managed(&managed, 150 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(memory().first, 108 * mib);
  EXPECT_EQ(give_back(at), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 208 * mib);
}

TEST_F(Limit, ACallThatTheDriverRefusesIsNotCounted) {
  setenv("SIMCUDA_FAIL", "cuMemAllocManaged:1:999", 1);
  begin();
  CUdeviceptr managed = 0;
  EXPECT_EQ(try_managed(&managed, 100 * mib), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(memory().first, 208 * mib);
}

TEST_F(Limit, MappedPagesCountUntilNothingHoldsThem) {
  begin();
  CUmemGenericAllocationHandle pages = 0;
  ASSERT_EQ(try_pages(&pages, 100 * mib), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 108 * mib);
  CUmemGenericAllocationHandle more = 0;
  EXPECT_EQ(try_pages(&more, 110 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr range = 0;
  ASSERT_EQ(linked<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve")(&range, 100 * mib, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(linked<PFN_cuMemMap_v10020>("cuMemMap")(range, 100 * mib, 0, pages, 0), CUDA_SUCCESS);
  ASSERT_EQ(linked<PFN_cuMemUnmap_v10020>("cuMemUnmap")(range, 100 * mib), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 108 * mib) << "the handle still holds them";
  ASSERT_EQ(linked<PFN_cuMemRelease_v10020>("cuMemRelease")(pages), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 208 * mib);
}

TEST_F(Limit, MemoryOfAPoolOfTheProgramCounts) {
  begin();
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(linked<PFN_cuDeviceGetDefaultMemPool_v11020>("cuDeviceGetDefaultMemPool")(&pool, 0), CUDA_SUCCESS);
  const CUmemAccessDesc reach{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(linked<PFN_cuMemPoolSetAccess_v11020>("cuMemPoolSetAccess")(pool, &reach, 1), CUDA_SUCCESS)
      << "which makes it the program's own";
  const auto from_pool = linked<PFN_cuMemAllocFromPoolAsync_v11020>("cuMemAllocFromPoolAsync");
  CUdeviceptr at = 0;
  ASSERT_EQ(from_pool(&at, 64 * mib, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 144 * mib);
  CUdeviceptr more = 0;
  EXPECT_EQ(from_pool(&more, 150 * mib, pool, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(linked<PFN_cuMemFreeAsync_v11020>("cuMemFreeAsync")(at, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 208 * mib);
}

TEST_F(Limit, AModuleIsMeasuredAndDeducted) {
  setenv("SIMCUDA_MODULE_BYTES", "24MiB", 1);
  begin();
  EXPECT_EQ(memory().first, 208 * mib);
  static CUmodule module = nullptr;  // never unloaded
  ASSERT_EQ(linked<PFN_cuModuleLoadData_v2000>("cuModuleLoadData")(&module, "code"), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, 184 * mib);
  CUdeviceptr at = 0;
  EXPECT_EQ(try_allocate(&at, 190 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_allocate(&at, 180 * mib), CUDA_SUCCESS);
}

/// NVML reports this process's part of the memory in use.
class OwnBytes : public Limit {
 protected:
  static void begin_with(const char* own_percent) {
    setenv("GPUMEM_NVML", GPUMEM_TEST_NVML, 1);
    setenv("FAKENVML_CARDS", "1", 1);
    setenv("FAKENVML_UUIDS", "00000000-0000-0000-0000-000000000000", 1);
    setenv("FAKENVML_MIB", "1024", 1);
    setenv("FAKENVML_DRIVER", std::getenv("GPUMEM_CUDA_DRIVER"), 1);
    setenv("FAKENVML_OWN_PERCENT", own_percent, 1);
    begin();
  }
};

// While a module loads, half of the device's new use is another process's.
TEST_F(OwnBytes, OthersAllocationsDuringAMeasuredCallAreNotCharged) {
  setenv("SIMCUDA_MODULE_BYTES", "24MiB", 1);
  begin_with("50");
  EXPECT_EQ(memory().first, (256 - 16 - 16) * mib) << "half of a context of 32 MiB, and the headroom";
  static CUmodule module = nullptr;  // never unloaded
  ASSERT_EQ(linked<PFN_cuModuleLoadData_v2000>("cuModuleLoadData")(&module, "code"), CUDA_SUCCESS);
  EXPECT_EQ(memory().first, (256 - 16 - 16 - 12) * mib);
}

// Code loaded at a first launch: no call reports it, and here it is larger than the headroom.
TEST_F(OwnBytes, UnseenMemoryCountsAtTheNextGrowth) {
  begin_with("100");
  const CUdeviceptr at = allocate(100 * mib);
  std::uint64_t code = 0;
  ASSERT_EQ(of_double<int(std::uint64_t*, std::uint64_t)>("simcuda_charge_library")(&code, 80 * mib), CUDA_SUCCESS);
  CUdeviceptr more = 0;
  EXPECT_EQ(try_allocate(&more, 100 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_managed(&more, 100 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_allocate(&more, 20 * mib), CUDA_SUCCESS) << "there is room for";
  EXPECT_LE(used_bytes(), 256 * mib);
  EXPECT_EQ(give_back(at), CUDA_SUCCESS);
}

TEST_F(Limit, ALimitSmallerThanTheContextSaysSo) {
  setenv("SIMCUDA_CONTEXT_BYTES", "300MiB", 1);
  begin();
  CUdeviceptr at = 0;
  testing::internal::CaptureStderr();
  EXPECT_EQ(try_allocate(&at, mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_managed(&at, mib), CUDA_ERROR_OUT_OF_MEMORY) << "and nothing is passed on past it";
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("its context and modules take 300.00 MiB and GPUMEM_HEADROOM is 16.00 MiB; expected "
                                 "more than 316.00 MiB"));
}

TEST_F(Limit, ThreadsTogetherStayWithinIt) {
  begin();
  CUcontext context = nullptr;
  ASSERT_EQ(linked<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent")(&context), CUDA_SUCCESS);
  std::atomic<std::uint64_t> most{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ASSERT_EQ(linked<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
      for (unsigned i = 0; i < 100; ++i) {
        CUdeviceptr at = 0;
        const std::size_t bytes = ((i * 13 + t * 7) % 60 + 1) * 2 * mib;
        const CUresult e = t % 2 == 0 ? try_allocate(&at, bytes) : try_managed(&at, bytes);
        if (e == CUDA_ERROR_OUT_OF_MEMORY) ++refused;
        std::uint64_t seen = most;
        const std::uint64_t now = used_bytes();
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
        if (e == CUDA_SUCCESS) {
          ASSERT_EQ(give_back(at), CUDA_SUCCESS);
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LE(most.load(), 256 * mib);
  EXPECT_EQ(memory().first, 208 * mib);
}

TEST_F(Limit, OfThePoolCountsThePoolAlone) {
  setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);
  begin();
  CUdeviceptr managed = 0;
  EXPECT_EQ(try_managed(&managed, 500 * mib), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(try_allocate(&at, 300 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_allocate(&at, 200 * mib), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpumem::preload_test
