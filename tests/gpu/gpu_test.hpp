/// Shared by the tests on a GPU: kernels that write a pattern and check it again, a fixture, and a churn of blocks.
///
/// Memory with two users shows as overwritten words; a spinning kernel widens the window in which that can happen. On
/// the double of the driver no kernel runs: its referee is informed of every use and judges instead.
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
  /// Waits for everything, and expects that no pattern was overwritten and that every pool's check passes.
  void TearDown() override;

  void open(const std::vector<std::pair<std::string, std::string>>& options);
  cudaStream_t stream();

  /// `try_allocate` and `try_deallocate` of the allocator, also reported to the referee.
  result<void*> take(std::uint64_t bytes, cudaStream_t s, oom_report* report = nullptr);
  status give(void* p);

  void spin(long long clocks, cudaStream_t s);
  /// On the stream: sets every word of the block to its index plus `pattern`.
  void write(void* p, std::uint64_t bytes, unsigned pattern, cudaStream_t s);
  /// On the stream: counts the words with another value.
  void check(const void* p, std::uint64_t bytes, unsigned pattern, cudaStream_t s);

  /// Allocates and frees blocks on these streams. Each is written, kept busy, sometimes read by another stream too, and
  /// checked at its end. A second user of the memory would overwrite the pattern.
  void churn(const std::vector<cudaStream_t>& streams, unsigned seed, int operations);

  std::unique_ptr<device> device_;
  std::unique_ptr<allocator> allocator_;

 private:
  unsigned* wrong_ = nullptr;
  std::vector<cudaStream_t> streams_;
};

}  // namespace gpumem::gpu_test
