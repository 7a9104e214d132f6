// Features that the simulated driver refuses because a driver or a card may lack them: green contexts, handles for
// other processes.
#include <cuda.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

class Refused : public testing::Test {
 protected:
  void SetUp() override { open({.bytes = 64 * mib}); }
  void open(const simcuda::world_config& config) {
    simcuda::configure(config);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  CUcontext context_ = nullptr;
};

// Features that are not modelled fail: cuMemExportToShareableHandle and green contexts return
// "CUDA_ERROR_NOT_SUPPORTED", like a driver or a card without them.
TEST_F(Refused, AreFunctionsThatAreNotModelled) {
  CUdevResource multiprocessors{};
  EXPECT_EQ(cuDeviceGetDevResource(0, &multiprocessors, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_NOT_SUPPORTED);
  CUgreenCtx green = nullptr;
  EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuCtxFromGreenCtx(nullptr, green), CUDA_ERROR_NOT_SUPPORTED);
  int file = 0;
  EXPECT_EQ(cuMemExportToShareableHandle(&file, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  CUmemGenericAllocationHandle pages = 0;
  EXPECT_EQ(cuMemImportFromShareableHandle(&pages, &file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_NOT_SUPPORTED);
}

// "requestedHandleTypes: requested handle types", which a container without the capability for them, or a card without
// a fabric, does not permit.
class RefusedHandleTypes : public Refused, public testing::WithParamInterface<CUmemAllocationHandleType> {};

TEST_P(RefusedHandleTypes, WhereTheyAreNotPermitted) {
  for (const bool permitted : {true, false}) {
    open({.bytes = 64 * mib, .exportable = permitted});
    const bool refused =
        GetParam() == CU_MEM_HANDLE_TYPE_FABRIC || (GetParam() != CU_MEM_HANDLE_TYPE_NONE && !permitted);
    CUmemAllocationProp pages{};
    pages.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    pages.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    pages.requestedHandleTypes = GetParam();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, 4 * mib, &pages, 0), refused ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS);
  }
}
INSTANTIATE_TEST_SUITE_P(Types, RefusedHandleTypes,
                         testing::Values(CU_MEM_HANDLE_TYPE_NONE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                         CU_MEM_HANDLE_TYPE_FABRIC));

// A MIG instance is a device with MIG in its name. "If the device is in MIG mode, returns its MIG UUID"
// (cuDeviceGetUuid_v2): 16 bytes without the prefix that NVML writes.
TEST_F(Refused, ASliceOfACardSaysSoInItsName) {
  open({.bytes = 64 * mib, .mig = true});
  char name[64] = {};
  ASSERT_EQ(cuDeviceGetName(name, sizeof name, 0), CUDA_SUCCESS);
  EXPECT_STREQ(name, "simulated GPU MIG 1g.10gb");
  CUuuid slice{};
  ASSERT_EQ(cuDeviceGetUuid_v2(&slice, 0), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpumem
