// cudaMallocAsync and cudaFreeAsync in captures of preloaded programs. The driver provides the memory, which belongs to
// the graph until its destruction; gpumem still serves other requests. Every case runs in a process of its own.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "preload/world.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class MemoryNodes : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(preloaded()) << "run by ctest, which sets LD_PRELOAD and GPUMEM_CUDA_DRIVER";
    setenv("SIMCUDA_BYTES", "1GiB", 1);
    setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  }
  void TearDown() override { EXPECT_EQ(hazards(), 0U); }

  static cudaStream_t stream() {
    cudaStream_t s = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    return s;
  }
  static void* take(std::size_t bytes, cudaStream_t s) {
    void* p = nullptr;
    EXPECT_EQ(cudaMallocAsync(&p, bytes, s), cudaSuccess) << bytes;
    return p;
  }
  static void begin(cudaStream_t s) { ASSERT_EQ(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess); }
  static cudaGraph_t end(cudaStream_t s) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(s, &graph), cudaSuccess) << "spoilt";
    return graph;
  }
  static cudaGraphExec_t instantiate(cudaGraph_t graph, unsigned long long flags = 0) {
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaGraphInstantiateWithFlags(&exec, graph, flags), cudaSuccess);
    return exec;
  }
  static std::uint64_t held_by_graphs() {
    std::uint64_t held = 0;
    EXPECT_EQ(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &held), cudaSuccess);
    return held;
  }
  static void to_and_from(cudaStream_t behind, cudaStream_t first) {
    cudaEvent_t e = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(e, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(behind, e, 0), cudaSuccess);
    ASSERT_EQ(cudaEventDestroy(e), cudaSuccess);
  }
};

TEST_F(MemoryNodes, ScratchThatIsTakenAndFreedInTheCapture) {
  cudaStream_t const s = stream();
  void* const result = take(mib, s);
  begin(s);
  void* const scratch = take(8 * mib, s);
  use(s, 1000, scratch, 8 * mib);
  use(s, 1000, result, mib);
  EXPECT_EQ(cudaFreeAsync(scratch, s), cudaSuccess);
  cudaGraphExec_t const exec = instantiate(end(s));
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
    void* const other = take(8 * mib, s);
    EXPECT_NE(other, scratch) << "the graph's address stays its own between launches";
    use(s, 1000, other, 8 * mib);
    EXPECT_EQ(cudaFreeAsync(other, s), cudaSuccess);
  }
  EXPECT_EQ(cudaFreeAsync(result, s), cudaSuccess);
}

TEST_F(MemoryNodes, BlocksLeftByTheGraphAreFreedAfterTheLaunch) {
  cudaStream_t const s = stream();
  begin(s);
  void* const out = take(4 * mib, s);
  use(s, 1000, out, 4 * mib);
  cudaGraph_t const graph = end(s);
  cudaGraphExec_t const exec = instantiate(graph);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
    use(s, 1000, out, 4 * mib);
    EXPECT_EQ(i % 2 == 0 ? cudaFreeAsync(out, s) : cudaFree(out), cudaSuccess) << "the driver's to free";
  }
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(held_by_graphs(), 4 * mib) << "of the executable graph";
  ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  ASSERT_EQ(cudaDeviceGraphMemTrim(0), cudaSuccess);
  EXPECT_EQ(held_by_graphs(), 0U);
}

TEST_F(MemoryNodes, SeveralGraphsFreeOneAnothersMemoryAndOwnNoCommonBytes) {
  cudaStream_t const s = stream();
  begin(s);
  void* const a = take(4 * mib, s);
  cudaGraphExec_t const makes = instantiate(end(s));
  begin(s);
  void* const b = take(4 * mib, s);
  use(s, 1000, a, 4 * mib);
  use(s, 1000, b, 4 * mib);
  EXPECT_EQ(cudaFreeAsync(a, s), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(b, s), cudaSuccess);
  cudaGraphExec_t const takes = instantiate(end(s));
  EXPECT_NE(a, b);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaGraphLaunch(makes, s), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(takes, s), cudaSuccess);
  }
}

// As Kokkos' parallel kernels in a captured stream do: linked into another stream, with scratch of their own there.
TEST_F(MemoryNodes, AStreamThatJoinedTheCaptureAllocatesInItsGraph) {
  cudaStream_t const s = stream();
  cudaStream_t const joined = stream();
  cudaStream_t const apart = stream();
  void* const free_before = take(2 * mib, joined);
  begin(s);
  to_and_from(joined, s);
  void* const scratch = take(2 * mib, joined);
  use(joined, 1000, scratch, 2 * mib);
  EXPECT_EQ(cudaFreeAsync(scratch, joined), cudaSuccess);
  to_and_from(s, joined);
  void* const beside = take(2 * mib, apart);
  EXPECT_EQ(cudaFreeAsync(beside, apart), cudaSuccess);
  EXPECT_EQ(take(2 * mib, apart), beside) << "the pool goes on meanwhile";
  cudaGraphExec_t const exec = instantiate(end(s));
  ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
  EXPECT_EQ(cudaFreeAsync(free_before, joined), cudaSuccess) << "and the stream that joined is served again";
}

// As RMM's stream-ordered resources are used: vectors of changing size from one stream, some before, some inside, some
// after the capture, freed wherever their scope ends.
TEST_F(MemoryNodes, BuffersWhoseScopesCrossTheCapture) {
  cudaStream_t const s = stream();
  void* const before = take(3 * mib, s);
  begin(s);
  use(s, 1000, before, 3 * mib);
  EXPECT_EQ(cudaFreeAsync(before, s), cudaErrorInvalidValue) << "no free node for what is not a graph's";
  static_cast<void>(cudaGetLastError());
  void* const inside = take(5 * mib, s);
  use(s, 1000, inside, 5 * mib);
  cudaGraph_t const graph = end(s);
  EXPECT_EQ(cudaFreeAsync(before, s), cudaSuccess);
  cudaGraphExec_t const exec = instantiate(graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, s), cudaSuccess);
    void* const after = take(5 * mib, s);
    EXPECT_NE(after, inside);
    use(s, 1000, after, 5 * mib);
    EXPECT_EQ(cudaFreeAsync(after, s), cudaSuccess);
  }
  EXPECT_EQ(cudaFreeAsync(inside, s), cudaSuccess);
}

TEST_F(MemoryNodes, TheLimitCountsThemUntilTheyGoBack) {
  setenv("GPUMEM_LIMIT", "256MiB", 1);
  setenv("GPUMEM_HEADROOM", "0", 1);
  cudaStream_t const s = stream();
  EXPECT_EQ(cudaFreeAsync(take(mib, s), s), cudaSuccess);
  begin(s);
  void* const big = take(100 * mib, s);
  void* p = nullptr;
  EXPECT_EQ(cudaMallocAsync(&p, 200 * mib, s), cudaErrorMemoryAllocation);
  static_cast<void>(cudaGetLastError());
  cudaGraph_t const graph = end(s);
  EXPECT_EQ(cudaMalloc(&p, 200 * mib), cudaErrorMemoryAllocation) << "the graph has 100 MiB of it";
  static_cast<void>(cudaGetLastError());
  static_cast<void>(big);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaDeviceGraphMemTrim(0), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, 200 * mib), cudaSuccess);
}

}  // namespace
}  // namespace gpumem::preload_test
