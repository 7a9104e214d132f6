// Stream order: many streams, threads, destroyed streams, per-thread streams, captured graphs.
#include <chrono>
#include <thread>
#include <tuple>

#include "gpu_test.hpp"

namespace gpumem::gpu_test {
namespace {

class GpuChurn : public Gpu, public ::testing::WithParamInterface<std::tuple<const char*, const char*, const char*>> {};

TEST_P(GpuChurn, PatternsSurviveOnManyStreams) {
  const auto [policy, reuse, ids] = GetParam();
  // Up to 192 MiB live. `caching` keeps small and large requests apart, so less room may refuse a small one by chance.
  open({{"policy", policy}, {"limit", "512MiB"}, {"stream_reuse", reuse}, {"stream_ids", ids}});
  std::vector<cudaStream_t> streams{nullptr};
  for (int i = 0; i < 6; ++i) streams.push_back(stream());
  churn(streams, 7, 3000);
}

INSTANTIATE_TEST_SUITE_P(Every, GpuChurn,
                         ::testing::Combine(::testing::Values("growth", "caching", "grab_all", "hard_cap"),
                                            ::testing::Values("device", "poll", "host"),
                                            ::testing::Values("query", "notify")));

TEST_F(Gpu, TwoThreadsOnStreamsOfTheirOwn) {
  open({{"limit", "512MiB"}});
  const std::vector<std::vector<cudaStream_t>> streams{{stream(), stream()}, {stream(), stream()}};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      CUDA_OK(cudaSetDevice(ordinal()));
      churn(streams[t], 100 + t, 2000);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_F(Gpu, TwoThreadsOnTheSameStreams) {
  open({{"limit", "512MiB"}});
  const std::vector<cudaStream_t> streams{nullptr, stream(), stream()};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      CUDA_OK(cudaSetDevice(ordinal()));
      churn(streams, 200 + t, 2000);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_F(Gpu, ThePerThreadStreamIsAnotherInEachThread) {
  const auto here = device_->stream_id(per_thread_stream);
  ASSERT_TRUE(here.ok()) << here.why().message();
  std::thread{[&] {
    CUDA_OK(cudaSetDevice(ordinal()));
    const auto there = device_->stream_id(per_thread_stream);
    ASSERT_TRUE(there.ok()) << there.why().message();
    EXPECT_NE(*here, *there);
  }}.join();
}

TEST_F(Gpu, ThreadsOnTheirPerThreadStreams) {
  open({{"policy", "caching"}, {"limit", "512MiB"}});
  cudaStream_t shared = stream();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      CUDA_OK(cudaSetDevice(ordinal()));
      churn({cudaStreamPerThread, shared}, 300 + t, 800);
    });
  }
  for (std::thread& t : threads) t.join();
  // Those streams are destroyed; the memory they freed still serves the others.
  const result<void*> most = take(400 * mib, shared);
  ASSERT_TRUE(most.ok()) << most.why().message();
  write(*most, 400 * mib, 3, shared);
  EXPECT_TRUE(give(*most).ok());
}

TEST_F(Gpu, AStreamThatIsGoneLeavesNothingToTheNextOneWithItsHandle) {
  open({{"limit", "64MiB"}});
  for (unsigned i = 0; i < 50; ++i) {
    cudaStream_t s = nullptr;
    CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    const result<void*> p = take(16 * mib, s);
    ASSERT_TRUE(p.ok()) << p.why().message();
    spin(3'000'000, s);
    write(*p, 16 * mib, 1000 + i, s);
    check(*p, 16 * mib, 1000 + i, s);
    ASSERT_TRUE(give(*p).ok());
    CUDA_OK(cudaStreamDestroy(s));  // its work continues
  }
}

TEST_F(Gpu, ACapturedGraphKeepsItsMemoryToItself) {
  open({{"policy", "caching"}, {"limit", "256MiB"}});
  cudaStream_t s = stream();
  cudaStream_t other = stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  const result<void*> p = take(32 * mib, s);
  ASSERT_TRUE(p.ok()) << p.why().message();
  write(*p, 32 * mib, 77, s);
  check(*p, 32 * mib, 77, s);
  ASSERT_TRUE(give(*p).ok());
  CUDA_OK(cudaStreamEndCapture(s, &graph));
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  // Nothing allocated while the graph lives overlaps the memory that the graph writes.
  for (int i = 0; i < 20; ++i) {
    const result<void*> q = take(64 * mib, other);
    ASSERT_TRUE(q.ok()) << q.why().message();
    const auto apart = reinterpret_cast<std::intptr_t>(*q) - reinterpret_cast<std::intptr_t>(*p);
    EXPECT_TRUE(apart >= static_cast<std::intptr_t>(32 * mib) || -apart >= static_cast<std::intptr_t>(64 * mib));
    write(*q, 64 * mib, 5, other);
    CUDA_OK(cudaGraphLaunch(exec, s));
    check(*q, 64 * mib, 5, other);
    ASSERT_TRUE(give(*q).ok());
  }
  CUDA_OK(cudaStreamSynchronize(s));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaDeviceSynchronize());
  // The driver reports the graph's destruction on its own thread, so the test waits for it.
  bool all = false;
  for (int tries = 0; tries < 100 && !all; ++tries) {
    const result<void*> got = take(240 * mib, other);
    all = got.ok();
    if (all) EXPECT_TRUE(give(*got).ok());
    if (!all) std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
  EXPECT_TRUE(all) << "the memory of a graph that is gone comes back";
}

// Another part of the program resets the device: its memory is lost, and nothing crashes.
TEST(GpuReset, AnOpenAllocatorSaysSoAndANewOneWorks) {
  CUDA_OK(cudaSetDevice(ordinal()));
  CUDA_OK(cudaFree(nullptr));
  auto on = open_cuda_device({.ordinal = ordinal()});
  ASSERT_TRUE(on.ok()) << on.why().message();
  const auto open = [](device* d) {
    settings with;
    EXPECT_TRUE(with.set("limit", "64MiB").ok());
    return *allocator::open({&d, 1}, with);
  };
  std::unique_ptr<allocator> before = open(on->get());
  const result<void*> kept = before->try_allocate({.bytes = mib});
  ASSERT_TRUE(kept.ok()) << kept.why().message();
  CUDA_OK(cudaDeviceReset());
  CUDA_OK(cudaFree(nullptr));
  const result<void*> refused = before->try_allocate({.bytes = 32 * mib});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.why().message().find("was reset"), std::string::npos) << refused.why().message();
  static_cast<void>(before->try_deallocate(*kept));
  auto anew = open_cuda_device({.ordinal = ordinal()});
  ASSERT_TRUE(anew.ok()) << anew.why().message();
  std::unique_ptr<allocator> after = open(anew->get());
  const result<void*> works = after->try_allocate({.bytes = 32 * mib});
  ASSERT_TRUE(works.ok()) << works.why().message();
  CUDA_OK(cudaMemset(*works, 1, 32 * mib));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_TRUE(after->try_deallocate(*works).ok());
  before.reset();
  EXPECT_TRUE(after->check(0).ok());
}

}  // namespace
}  // namespace gpumem::gpu_test
