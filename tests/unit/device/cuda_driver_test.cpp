// Finding the driver's functions: errors name the missing or outdated function with both versions.
#include "cuda_driver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "simcuda.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

std::string left_out;

/// The double's cuGetProcAddress with one function left out.
CUresult CUDAAPI without_one(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* how) {
  if (left_out == symbol) {
    *function = nullptr;
    if (how != nullptr) *how = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
  }
  return cuGetProcAddress(symbol, function, version, flags, how);
}

result<const cuda_driver*> driver_without(std::string function) {
  left_out = std::move(function);
  return resolve_cuda_driver(reinterpret_cast<void*>(&without_one));
}

class CudaDriver : public ::testing::Test {
 protected:
  void SetUp() override { simcuda::configure({.devices = 2}); }
};

TEST_F(CudaDriver, ResolvesEveryFunction) {
  const auto driver = driver_without("");
  ASSERT_TRUE(driver.ok()) << driver.why().message();
  EXPECT_TRUE((*driver)->mem_alloc);
  EXPECT_TRUE((*driver)->ctx_record_event);
  EXPECT_STREQ((*driver)->mem_alloc.name, "cuMemAlloc");
  EXPECT_GE((*driver)->version, oldest_driver_version);
  EXPECT_EQ(*cuda_device_count(*driver), 2);
}

TEST_F(CudaDriver, EveryNeededFunctionThatIsMissingIsNamed) {
  struct row {
    const char* name;
    bool needed;
  };
  constexpr bool needed = true;
  constexpr bool optional = false;
  const row rows[] = {
#define DRIVER(member, name, version, type, since) {name, since},
#include "cuda_driver.def"
  };
  for (const row& r : rows) {
    const auto driver = driver_without(r.name);
    EXPECT_EQ(driver.ok(), !r.needed) << r.name;
    if (!driver) {
      EXPECT_EQ(driver.code(), errc::device_error);
      EXPECT_THAT(driver.why().message(), HasSubstr(r.name));
      EXPECT_THAT(driver.why().message(), HasSubstr("12.0"));
    }
  }
}

TEST_F(CudaDriver, TooOldNamesBothVersions) {
  simcuda::configure({.driver_version = 11040});
  const auto driver = driver_without("");
  EXPECT_EQ(driver.code(), errc::device_error);
  EXPECT_THAT(driver.why().message(), HasSubstr("11.4"));
  EXPECT_THAT(driver.why().message(), HasSubstr("12.0"));
}

TEST_F(CudaDriver, BeforeCuda125ThereIsNoEventOnAContext) {
  simcuda::configure({.driver_version = 12040});
  const auto driver = driver_without("");
  ASSERT_TRUE(driver.ok()) << driver.why().message();
  EXPECT_FALSE((*driver)->ctx_record_event);
}

TEST_F(CudaDriver, FailsWhenItsInitialisationFails) {
  simcuda::fail("cuInit", 1, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  const auto driver = driver_without("");
  EXPECT_THAT(driver.why().message(), HasSubstr("cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"));
  EXPECT_THAT(driver.why().message(), HasSubstr("restart the machine"));
}

TEST_F(CudaDriver, NoGpuIsNoError) {
  simcuda::configure({.devices = 0});
  const auto driver = driver_without("");
  ASSERT_FALSE(driver.ok()) << "cuInit of a machine without a GPU says so";
  EXPECT_THAT(driver.why().message(), HasSubstr("CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(driver.why().message(), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(CudaDriver, NullIsRefused) { EXPECT_EQ(resolve_cuda_driver(nullptr).code(), errc::invalid_argument); }

/// load_cuda_driver keeps the driver it loaded, so only refused drivers can be tried in one process.
TEST_F(CudaDriver, AFileThatIsNotThereIsNamed) {
  ASSERT_EQ(setenv("GPUMEM_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1), 0);
  const auto driver = load_cuda_driver();
  unsetenv("GPUMEM_CUDA_DRIVER");
  EXPECT_EQ(driver.code(), errc::device_error);
  EXPECT_EQ(driver.why().message(),
            "GPUMEM_CUDA_DRIVER=/nowhere/libcuda.so.1: no CUDA driver: cannot open shared object file: No such file or "
            "directory; expected the path of libcuda.so.1 of CUDA 12.0 or later");
}

}  // namespace
}  // namespace gpumem
