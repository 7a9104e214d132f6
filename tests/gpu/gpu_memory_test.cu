// Amounts of memory: the limit on a real card, memory of other processes, mapped pages, NVML's figures.
#include "gpu_test.hpp"
#include "gpumem/gpu_usage.hpp"

namespace gpumem::gpu_test {
namespace {

TEST_F(Gpu, TheLimitHoldsOnTheDevice) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  open({{"limit", "512MiB"}});
  const result<void*> first = take(mib, nullptr);
  ASSERT_TRUE(first.ok()) << first.why().message();
  CUDA_OK(cudaMemGetInfo(&before, &total));
  const std::uint64_t reserved = allocator_->stats(0)->reserved_bytes;
  std::vector<void*> all;
  while (const result<void*> got = take(8 * mib, nullptr)) all.push_back(*got);
  CUDA_OK(cudaMemGetInfo(&after, &total));
  EXPECT_LE(allocator_->stats(0)->reserved_bytes, 512 * mib);
  EXPECT_GE(all.size(), 60U);
  EXPECT_NEAR(static_cast<double>(before) - static_cast<double>(after),
              static_cast<double>(allocator_->stats(0)->reserved_bytes - reserved), static_cast<double>(64 * mib))
      << "what the device lost is what the pool took";
  for (void* p : all) EXPECT_TRUE(give(p).ok());
  EXPECT_TRUE(give(*first).ok());
}

TEST_F(Gpu, MemoryThatSomebodyElseTookIsAnOutOfMemoryThatSaysSo) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  open({{"policy", "growth"}});
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total));
  void* others = nullptr;
  CUDA_OK(cudaMalloc(&others, free_bytes - 256 * mib));
  oom_report report;
  const result<void*> refused = take(1024 * mib, nullptr, &report);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(report.cause, oom_cause::device_full) << report.to_string();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the driver's refusal is not left for the program to find";
  const result<void*> small = take(16 * mib, nullptr);
  EXPECT_TRUE(small.ok()) << small.why().message();
  if (small.ok()) EXPECT_TRUE(give(*small).ok());
  CUDA_OK(cudaFree(others));
  const result<void*> again = take(1024 * mib, nullptr);
  EXPECT_TRUE(again.ok()) << again.why().message();
  if (again.ok()) EXPECT_TRUE(give(*again).ok());
}

TEST_F(Gpu, TrimGivesTheDeviceItsMemoryBack) {
  open({{"policy", "caching"}, {"limit", "1GiB"}});
  const result<void*> p = take(512 * mib, nullptr);
  ASSERT_TRUE(p.ok()) << p.why().message();
  write(*p, 512 * mib, 1, nullptr);
  check(*p, 512 * mib, 1, nullptr);
  ASSERT_TRUE(give(*p).ok());
  CUDA_OK(cudaDeviceSynchronize());
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  CUDA_OK(cudaMemGetInfo(&before, &total));
  static_cast<void>(allocator_->trim(0));
  CUDA_OK(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(allocator_->stats(0)->reserved_bytes, 0U);
  EXPECT_GE(after, before + 500 * mib);
}

/// Two blocks are free when one of twice their size is requested. The parameter: on a created stream.
class GpuGrowth : public Gpu, public ::testing::WithParamInterface<bool> {
 protected:
  std::uint64_t reserved_after_a_larger_request(const char* stream_ids, cudaStream_t s) {
    open({{"policy", "growth"}, {"stream_ids", stream_ids}});
    const result<void*> one = take(400 * mib, s);
    const result<void*> other = take(400 * mib, s);
    if (!one.ok() || !other.ok()) {
      ADD_FAILURE() << "no memory for the first two blocks";
      return 0;
    }
    for (const result<void*>* block : {&one, &other}) {
      write(**block, 400 * mib, 1, s);
      EXPECT_TRUE(give(**block).ok());
    }
    EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
    const result<void*> larger = take(800 * mib, s);
    EXPECT_TRUE(larger.ok()) << larger.why().message();
    const std::uint64_t reserved = allocator_->stats(0)->reserved_bytes;
    if (larger.ok()) EXPECT_TRUE(give(*larger).ok());
    return reserved;
  }
};
INSTANTIATE_TEST_SUITE_P(, GpuGrowth, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "CreatedStream" : "DefaultStream"; });

TEST_P(GpuGrowth, GivesIdleSegmentsBackFirst) {
  EXPECT_EQ(reserved_after_a_larger_request("notify", GetParam() ? stream() : nullptr), 800 * mib);
}

// An event on the context, or the driver's free, would invalidate the capture.
TEST_P(GpuGrowth, KeepsThemWhereACaptureMayBeUnderWay) {
  cudaStream_t const capturing = stream();
  CUDA_OK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(reserved_after_a_larger_request("query", GetParam() ? stream() : nullptr), 1600 * mib);
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(capturing, &graph));
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(Gpu, PagesKeepTheirContentsWhereverTheyAreMapped) {
  const std::uint64_t page = device_->info().page_bytes;
  ASSERT_NE(page, 0U);
  cudaStream_t s = stream();
  const auto range = device_->reserve(8 * page);
  ASSERT_TRUE(range.ok()) << range.why().message();
  const auto run = device_->create(2 * page);
  ASSERT_TRUE(run.ok()) << run.why().message();
  const auto at = [&](std::uint64_t offset) { return reinterpret_cast<void*>(*range + offset); };
  ASSERT_TRUE(device_->map(*range, 2 * page, *run).ok());
  ASSERT_TRUE(device_->set_access(*range, 2 * page).ok());
  write(at(0), 2 * page, 9, s);
  CUDA_OK(cudaDeviceSynchronize());
  ASSERT_TRUE(device_->unmap(*range, 2 * page).ok());
  ASSERT_TRUE(device_->map(*range + 4 * page, 2 * page, *run).ok());
  ASSERT_TRUE(device_->set_access(*range + 4 * page, 2 * page).ok());
  check(at(4 * page), 2 * page, 9, s);
  CUDA_OK(cudaDeviceSynchronize());
  ASSERT_TRUE(device_->unmap(*range + 4 * page, 2 * page).ok());
  ASSERT_TRUE(device_->destroy(*run).ok());
  EXPECT_TRUE(device_->release_range(*range, 8 * page).ok());
}

TEST_F(Gpu, NvmlKnowsTheCard) {
  const auto all = gpu_usage_now();
  if (!all) GTEST_SKIP() << all.why().message();
  ASSERT_FALSE(all->empty());
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total));
  bool found = false;
  for (const gpu_usage& g : *all) {
    if (g.uuid != device_->info().uuid) continue;
    found = true;
    EXPECT_NEAR(static_cast<double>(g.free_bytes), static_cast<double>(free_bytes), static_cast<double>(1024 * mib));
  }
  if (!found) GTEST_SKIP() << "no card with the UUID " << device_->info().uuid << " (MIG, or hidden by a container)";
}

}  // namespace
}  // namespace gpumem::gpu_test
