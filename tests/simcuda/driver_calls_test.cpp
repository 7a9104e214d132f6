// Checks common to every call of the simulated driver: its count, its planned failure, the thread's current context.
#include <cuda.h>
#include <gtest/gtest.h>

#include <string_view>
#include <thread>

#include "bits.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

class SimcudaCalls : public testing::Test {
 protected:
  void SetUp() override {
    simcuda::configure({.devices = 2, .bytes = 64 * mib});
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
};

// Some functions take no lock; each thread counts its own calls of these.
TEST_F(SimcudaCalls, CallsAreCountedInWhicheverThreadUntilTheWorldIsANewOne) {
  for (const char* name : {"cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamGetId"}) {
    const std::uint64_t before = simcuda::calls(name);
    const auto call = [name] {
      CUcontext context = nullptr;
      CUdevice on = 0;
      unsigned long long id = 0;
      if (name == std::string_view{"cuCtxGetCurrent"}) static_cast<void>(cuCtxGetCurrent(&context));
      if (name == std::string_view{"cuCtxGetDevice"}) static_cast<void>(cuCtxGetDevice(&on));
      if (name == std::string_view{"cuStreamGetId"}) static_cast<void>(cuStreamGetId(nullptr, &id));
    };
    call();
    std::thread{[&] {
      call();
      call();
    }}.join();
    EXPECT_EQ(simcuda::calls(name), before + 3) << name;
  }
  simcuda::configure({.bytes = 64 * mib});
  EXPECT_EQ(simcuda::calls("cuCtxGetCurrent"), 0U);
  EXPECT_EQ(simcuda::calls("cuStreamGetId"), 0U);
}

TEST_F(SimcudaCalls, AFailureIsOfTheCallThatItWasPlannedForAndOfNoOther) {
  CUdevice on = 0;
  simcuda::fail("cuCtxGetDevice", 2, CUDA_ERROR_UNKNOWN);
  simcuda::fail("cuStreamCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuCtxGetDevice(&on), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetDevice(&on), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(cuCtxGetDevice(&on), CUDA_SUCCESS);
  CUstream s = nullptr;
  EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuStreamCreate(&s, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
}

TEST_F(SimcudaCalls, TheCurrentContextFollowsTheThreadsStackAndDiesWithTheWorld) {
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  CUcontext now = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&first), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(second), CUDA_SUCCESS);
  CUdevice on = -1;
  ASSERT_EQ(cuCtxGetDevice(&on), CUDA_SUCCESS);
  EXPECT_EQ(on, 1);
  ASSERT_EQ(cuCtxPopCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, second);
  ASSERT_EQ(cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, first);
  std::thread{[] {
    CUcontext none = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&none), CUDA_SUCCESS);
    EXPECT_EQ(none, nullptr) << "of another thread";
  }}.join();
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetDevice(&on), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  simcuda::configure({.bytes = 64 * mib});
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, nullptr);
}

}  // namespace
}  // namespace gpumem
