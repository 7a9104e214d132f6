/// A test that calls the driver through the shim, by linked names or by functions from cuGetProcAddress.
#pragma once

#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include "world.hpp"

namespace gpumem::preload_test {

class driver_program : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(preloaded()) << "run by ctest, which sets LD_PRELOAD and GPUMEM_CUDA_DRIVER";
    setenv("GPUMEM_LIMIT_SCOPE", "pool", 1);  // limits here are smaller than a context
    setenv("SIMCUDA_BYTES", "1GiB", 1);
    setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  }
  /// Through the exported name, as a program that links the driver does.
  template <typename Pointer>
  static Pointer linked(const char* symbol) {
    return reinterpret_cast<Pointer>(of_driver<void>(symbol));
  }
  template <typename Pointer>
  static Pointer asked(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult how{};
    const auto ask = linked<PFN_cuGetProcAddress_v12000>("cuGetProcAddress_v2");
    EXPECT_EQ(ask(name, &found, version, flags, &how), CUDA_SUCCESS) << name;
    return reinterpret_cast<Pointer>(found);
  }
  static void begin() {
    ASSERT_EQ(linked<PFN_cuInit_v2000>("cuInit")(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(linked<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain")(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(linked<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  }
  static CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr at = 0;
    EXPECT_EQ(linked<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&at, bytes), CUDA_SUCCESS);
    return at;
  }
};

}  // namespace gpumem::preload_test
