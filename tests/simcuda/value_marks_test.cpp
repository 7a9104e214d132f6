// Marks of values: which memory of the cards holds true values, according to the simulated driver.
#include "driver/value_marks.hpp"

#include <cuda.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "control.h"
#include "simcuda.hpp"

namespace gpumem {
namespace {

using simcuda::value_mark;
using simcuda::value_marks;

constexpr value_mark computed{.computed = true, .zero_due = false};
constexpr value_mark untrue_zero{.computed = false, .zero_due = true};

TEST(ValueMarks, KnowsTrueValuesByByte) {
  value_marks marks;
  EXPECT_FALSE(marks.all_computed(100, 1));
  EXPECT_TRUE(marks.all_computed(100, 0));
  marks.set(100, 50, computed);
  EXPECT_TRUE(marks.all_computed(100, 50));
  EXPECT_FALSE(marks.all_computed(99, 2));
  EXPECT_FALSE(marks.all_computed(149, 2));
  marks.set(150, 50, computed);
  EXPECT_TRUE(marks.all_computed(110, 80));
  EXPECT_EQ(marks.ranges(), 1U);
  marks.set(140, 20, untrue_zero);
  EXPECT_FALSE(marks.all_computed(110, 80));
  EXPECT_TRUE(marks.all_computed(100, 40));
  EXPECT_TRUE(marks.all_computed(160, 40));
  EXPECT_EQ(marks.ranges(), 3U);
  marks.erase(120, 60);
  EXPECT_TRUE(marks.all_computed(100, 20));
  EXPECT_TRUE(marks.all_computed(180, 20));
  EXPECT_FALSE(marks.all_computed(119, 2));
}

TEST(ValueMarks, TravelWithACopy) {
  value_marks marks;
  marks.set(100, 10, computed);
  marks.set(120, 10, untrue_zero);
  marks.set(200, 40, computed);
  marks.copy(200, 100, 30);
  EXPECT_TRUE(marks.all_computed(200, 10));
  EXPECT_FALSE(marks.all_computed(210, 1));
  EXPECT_TRUE(marks.all_zero_due(220, 10));
  EXPECT_TRUE(marks.all_computed(230, 10));
  EXPECT_TRUE(marks.all_computed(100, 10));
}

TEST(ValueMarks, NothingIsTrueBehindADoubt) {
  value_marks marks;
  marks.set(100, 10, computed);
  marks.doubt_all();
  EXPECT_FALSE(marks.all_computed(100, 10));
  marks.set(105, 5, computed);
  EXPECT_TRUE(marks.all_computed(105, 5));
  EXPECT_FALSE(marks.all_computed(100, 6));
}

TEST(ValueMarks, WriteTheZerosThatAreReadAndNoOthers) {
  std::array<char, 30> memory{};
  memory.fill('x');
  const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(memory.data()));
  value_marks marks;
  marks.set(at, 10, untrue_zero);
  marks.set(at + 10, 10, computed);
  marks.set(at + 20, 10, {.computed = true, .zero_due = true});
  EXPECT_FALSE(marks.write_zeros(at + 5, 20));
  EXPECT_EQ(std::string(memory.data(), memory.size()),
            std::string("xxxxx") + std::string(5, '\0') + "xxxxxxxxxx" + std::string(5, '\0') + "xxxxx");
  EXPECT_TRUE(marks.all_zero_due(at, 5));
  EXPECT_FALSE(marks.all_zero_due(at, 6));
  EXPECT_TRUE(marks.all_computed(at + 10, 20));
  EXPECT_TRUE(marks.write_zeros(at + 10, 20));
  EXPECT_FALSE(marks.write_zeros(at + 10, 21));
  EXPECT_TRUE(marks.write_zeros(at + 40, 0));
}

/// Through the driver: its copies and fills make values and move marks.
class Values : public testing::Test {
 protected:
  void SetUp() override {
    simcuda::configure({.bytes = std::uint64_t{64} << 20, .host_memory = true, .lazy_values = true});
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    simcuda_compute_values(kept);
  }
  void TearDown() override { simcuda_compute_values(0); }
  static CUdeviceptr block(std::size_t bytes) {
    CUdeviceptr out = 0;
    EXPECT_EQ(cuMemAlloc(&out, bytes), CUDA_SUCCESS);
    return out;
  }
  static int read(CUdeviceptr at) {
    int out = -1;
    EXPECT_EQ(cuMemcpyDtoH(&out, at, sizeof out), CUDA_SUCCESS);
    return out;
  }
  static constexpr std::uint64_t kept = 256 << 10;
  static constexpr std::size_t large = 1 << 20;
};

TEST_F(Values, OfCopiesAndFillsAreTrue) {
  const CUdeviceptr at = block(64);
  const int wanted = 42;
  ASSERT_EQ(cuMemcpyHtoD(at, &wanted, sizeof wanted), CUDA_SUCCESS);
  EXPECT_TRUE(simcuda_values_are_true(at, 4));
  EXPECT_FALSE(simcuda_values_are_true(at, 8));
  ASSERT_EQ(cuMemcpyDtoDAsync(at + 32, at, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(read(at + 32), 42);
  EXPECT_TRUE(simcuda_values_are_true(at + 32, 4));
  EXPECT_FALSE(simcuda_values_are_true(at + 32, 8));
  ASSERT_EQ(cuMemFree(at), CUDA_SUCCESS);
  EXPECT_FALSE(simcuda_values_are_true(at, 4));
}

TEST_F(Values, OfLargeFillsAreZeroOrUntrue) {
  const CUdeviceptr at = block(large);
  ASSERT_EQ(cuMemsetD8(at, 7, 16), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(at, 0, large), CUDA_SUCCESS);
  EXPECT_TRUE(simcuda_values_are_true(at, large));
  EXPECT_EQ(read(at), 0);  // and not the sevens, which memory still holds
  ASSERT_EQ(cuMemsetD8(at, 7, large), CUDA_SUCCESS);
  EXPECT_FALSE(simcuda_values_are_true(at, 4));
}

TEST_F(Values, AreUntrueAfterAnUnknownKernel) {
  const CUdeviceptr at = block(64);
  ASSERT_EQ(cuMemsetD8(at, 1, 64), CUDA_SUCCESS);
  simcuda_begin_operation();
  ASSERT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  simcuda_end_operation();
  EXPECT_TRUE(simcuda_values_are_true(at, 64));
  ASSERT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_FALSE(simcuda_values_are_true(at, 64));
  EXPECT_EQ(read(at), 0x01010101);
}

TEST_F(Values, OfAnOperationsSizeAreAnswered) {
  const CUdeviceptr at = block(64);
  simcuda_answer_reads(12, 1);
  EXPECT_EQ(read(at), 12);
  simcuda_answer_no_reads();
  EXPECT_EQ(read(at), 0);
}

}  // namespace
}  // namespace gpumem
