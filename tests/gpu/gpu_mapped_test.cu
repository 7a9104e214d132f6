// Mapped pages on a real card: how other programs, other cards and the driver's queries treat memory of growth in one
// region (GPUMEM_BACKING=mapped), and that pages may move while kernels use them. Each test is a step of scripts/gpu_check; until all have passed on a card, plain
// segments stay the default.
#include <cuda.h>
#include <dlfcn.h>

#include <vector>

#include "gpu_test.hpp"

namespace gpumem::gpu_test {
namespace {

constexpr std::uint64_t block_bytes = 48 * mib;

class GpuMapped : public Gpu {
 protected:
  /// Takes several growth steps whose blocks lie in one region of addresses.
  std::vector<void*> three_blocks() {
    open({{"policy", "growth"}, {"backing", "mapped"}});
    std::vector<void*> out;
    for (int i = 0; i < 3; ++i) {
      const result<void*> got = take(block_bytes, nullptr);
      EXPECT_TRUE(got.ok()) << got.why().message();
      if (got) out.push_back(*got);
    }
    return out;
  }
  void give_all(const std::vector<void*>& blocks) {
    for (void* p : blocks) EXPECT_TRUE(give(p).ok());
  }
};

TEST_F(GpuMapped, BlocksOfSeveralStepsAreMergedWhenTheyAreFree) {
  const std::vector<void*> blocks = three_blocks();
  ASSERT_EQ(blocks.size(), 3U);
  for (void* p : blocks) write(p, block_bytes, 5, nullptr);
  for (void* p : blocks) check(p, block_bytes, 5, nullptr);
  const std::uint64_t held = allocator_->stats(0)->reserved_bytes;
  give_all(blocks);
  const result<void*> all = take(3 * block_bytes, nullptr);
  ASSERT_TRUE(all.ok()) << all.why().message();
  write(*all, 3 * block_bytes, 6, nullptr);
  check(*all, 3 * block_bytes, 6, nullptr);
  EXPECT_EQ(allocator_->stats(0)->reserved_bytes, held) << "the next large one lies across the steps";
  EXPECT_TRUE(give(*all).ok());
}

// The kernels that still run write to the old addresses of the pages, and later ones to the new addresses.
TEST_F(GpuMapped, PagesMoveWithinTheirStreamWhileKernelsUseThem) {
  open({{"policy", "expandable"}, {"slack", "0"}});
  const cudaStream_t s = stream();
  std::vector<void*> blocks;
  for (unsigned i = 0; i < 4; ++i) {
    const result<void*> got = take(block_bytes, s);
    ASSERT_TRUE(got.ok()) << got.why().message();
    blocks.push_back(*got);
    write(blocks.back(), block_bytes, i, s);
  }
  spin(200'000'000, s);
  for (const unsigned i : {0U, 2U}) {
    write(blocks[i], block_bytes, 10 + i, s);
    ASSERT_TRUE(give(blocks[i]).ok());
  }
  const statistics before = *allocator_->stats(0);
  const result<void*> both = take(2 * block_bytes, s);
  ASSERT_TRUE(both.ok()) << both.why().message();
  if (!simulated()) EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady) << "the first kernels still run";
  write(*both, 2 * block_bytes, 20, s);
  check(*both, 2 * block_bytes, 20, s);
  for (const unsigned i : {1U, 3U}) check(blocks[i], block_bytes, i, s);
  const statistics after = *allocator_->stats(0);
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes);
  EXPECT_GE(after.remapped_pages, before.remapped_pages + block_bytes / (2 * mib));
  EXPECT_EQ(after.host_waits, before.host_waits);
  give_all({*both, blocks[1], blocks[3]});
  CUDA_OK(cudaStreamSynchronize(s));
  EXPECT_TRUE(allocator_->trim(0).ok());
}

TEST_F(GpuMapped, AnIpcHandleIsRefusedAndNeverOneOfOtherMemory) {
  const std::vector<void*> blocks = three_blocks();
  ASSERT_EQ(blocks.size(), 3U);
  cudaIpcMemHandle_t handle;
  EXPECT_NE(cudaIpcGetMemHandle(&handle, blocks[1]), cudaSuccess);
  static_cast<void>(cudaGetLastError());
  give_all(blocks);
}

TEST_F(GpuMapped, APeerReadsAndWrites) {
  int devices = 0;
  CUDA_OK(cudaGetDeviceCount(&devices));
  const int own = ordinal();
  int other = -1;
  for (int d = 0; d < devices && other < 0; ++d) {
    int can = 0;
    if (d != own) CUDA_OK(cudaDeviceCanAccessPeer(&can, d, own));
    if (can != 0) other = d;
  }
  if (other < 0) GTEST_SKIP() << "no other card here can be a peer of card " << own;
  ASSERT_TRUE(add_cuda_peer(*device_, other).ok());
  const std::vector<void*> blocks = three_blocks();
  ASSERT_EQ(blocks.size(), 3U);
  const std::vector<unsigned> sent(block_bytes / sizeof(unsigned), 77);
  std::vector<unsigned> came(sent.size());
  CUDA_OK(cudaSetDevice(other));
  CUDA_OK(cudaMemcpy(blocks[1], sent.data(), block_bytes, cudaMemcpyDefault));
  CUDA_OK(cudaMemcpy(came.data(), blocks[1], block_bytes, cudaMemcpyDefault));
  CUDA_OK(cudaSetDevice(own));
  EXPECT_EQ(came, sent);
  give_all(blocks);
}

TEST_F(GpuMapped, AnAddressRangeHoldsTheAddressThatItIsAskedFor) {
  if (simulated()) GTEST_SKIP() << "the double of the driver knows the ranges of allocations alone";
  const std::vector<void*> blocks = three_blocks();
  ASSERT_EQ(blocks.size(), 3U);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(driver, nullptr) << dlerror();
  void* const found = dlsym(driver, "cuMemGetAddressRange_v2");
  ASSERT_NE(found, nullptr) << dlerror();
  const auto range_of = reinterpret_cast<CUresult(CUDAAPI*)(CUdeviceptr*, std::size_t*, CUdeviceptr)>(found);
  for (void* p : blocks) {
    const auto at = reinterpret_cast<CUdeviceptr>(p);
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    ASSERT_EQ(range_of(&begin, &bytes, at), CUDA_SUCCESS);
    EXPECT_LE(begin, at);
    EXPECT_GT(begin + bytes, at);
    RecordProperty("range_bytes", std::to_string(bytes));  // of the mapping or of the whole region: either is correct
  }
  give_all(blocks);
}

}  // namespace
}  // namespace gpumem::gpu_test
