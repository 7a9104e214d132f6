/// What the tests on a GPU share: kernels that write a pattern and look for it again, a fixture, and a churn of blocks.
///
/// Memory in two hands at once is seen as words that somebody else wrote over; a spinning kernel widens the gap in
/// which that can happen. On the double of the driver no kernel runs: there its referee is told of every use and
/// judges.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/cuda_device.hpp"

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

namespace gpumem::gpu_test {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// Which GPU: GPUMEM_TEST_DEVICE, or the first.
int ordinal();
/// Whether the driver is the double.
bool simulated();

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override;
  /// Waits for everything, and expects that no pattern was spoilt and that every pool is sound.
  void TearDown() override;

  void open(const std::vector<std::pair<std::string, std::string>>& options);
  cudaStream_t stream();

  /// The allocator's `try_allocate` and `try_deallocate`, and the referee is told.
  result<void*> take(std::uint64_t bytes, cudaStream_t s, oom_report* report = nullptr);
  status give(void* p);

  void spin(long long clocks, cudaStream_t s);
  /// On the stream: every word of the block becomes its index plus `pattern`.
  void write(void* p, std::uint64_t bytes, unsigned pattern, cudaStream_t s);
  /// On the stream: counts the words that are not.
  void check(const void* p, std::uint64_t bytes, unsigned pattern, cudaStream_t s);

  /// Blocks come and go on these streams; each is written, kept busy, now and then read by another stream, too, and
  /// checked at its end. Memory that reaches a second stream too early is written over by it.
  void churn(const std::vector<cudaStream_t>& streams, unsigned seed, int operations);

  std::unique_ptr<device> device_;
  std::unique_ptr<allocator> allocator_;

 private:
  unsigned* wrong_ = nullptr;
  std::vector<cudaStream_t> streams_;
};

}  // namespace gpumem::gpu_test
