// Memory that belongs to graphs: each case quotes the sentence of the driver's documentation that it models, of
// cuGraphAddMemAllocNode where no other is named.
#include <cuda.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

class MemoryNodes : public testing::Test {
 protected:
  void SetUp() override {
    simcuda::configure({.bytes = 64 * mib});
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&s_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override { EXPECT_EQ(simcuda::device(0).hazard_count(), 0U); }

  void begin() { ASSERT_EQ(cuStreamBeginCapture(s_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS); }
  CUgraph end() {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(s_, &graph), CUDA_SUCCESS);
    return graph;
  }
  CUdeviceptr take(std::size_t bytes = 4 * mib) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAllocAsync(&at, bytes, s_), CUDA_SUCCESS);
    return at;
  }
  static CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, flags), CUDA_SUCCESS);
    return exec;
  }
  /// A graph that allocates and frees nothing.
  CUgraph allocating(CUdeviceptr* at) {
    begin();
    *at = take();
    simcuda::use(s_, 1000, *at, mib);
    return end();
  }
  void use(CUdeviceptr at) { simcuda::use(s_, 1000, at, mib); }
  static cuuint64_t figure(CUgraphMem_attribute which) {
    cuuint64_t value = 0;
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, which, &value), CUDA_SUCCESS);
    return value;
  }

  CUstream s_ = nullptr;
};
using MemoryNodesDeathTest = MemoryNodes;

// cuMemAllocAsync: "During stream capture, this function results in the creation of an allocation node. In this case,
// the allocation is owned by the graph instead of the memory pool."
TEST_F(MemoryNodes, AnAllocationInACaptureIsTheGraphsAndIsThereOnceThatHasRun) {
  CUdeviceptr at = 0;
  CUgraph const graph = allocating(&at);
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 4 * mib);
  EXPECT_EQ(cuMemFreeAsync(at, s_), CUDA_ERROR_INVALID_VALUE) << "no launch has allocated it";
  CUgraphExec const exec = instantiate(graph);
  ASSERT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 4 * mib);
  // "It can be accessed [...] also by stream operations ordered after the graph's execution but before the allocation
  // is freed." "Allocations which are not freed in the same graph can be freed by passing the allocation to
  // cuMemFreeAsync or cuMemFree".
  use(at);
  EXPECT_EQ(cuMemFreeAsync(at, s_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE) << "a second free";
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
}

TEST_F(MemoryNodesDeathTest, ABlockMayBeUsedOnlyWhileItLives) {
  CUdeviceptr at = 0;
  CUgraph const graph = allocating(&at);
  EXPECT_DEATH(use(at), "memory of a graph that has not run, or that is freed");
  begin();
  const CUdeviceptr freed = take();
  ASSERT_EQ(cuMemFreeAsync(freed, s_), CUDA_SUCCESS);
  EXPECT_DEATH(use(freed), "memory that its graph has freed");
  static_cast<void>(end());
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// cuGraphLaunch: "If any allocations created by hGraphExec remain unfreed (from a previous launch) and hGraphExec was
// not instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, the launch will fail with
// CUDA_ERROR_INVALID_VALUE."
TEST_F(MemoryNodes, ARelaunchNeedsItsAllocationsFreed) {
  CUdeviceptr at = 0;
  CUgraph const graph = allocating(&at);
  CUgraphExec exec = instantiate(graph);
  ASSERT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemFreeAsync(at, s_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  exec = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  use(at);
}

// "These allocations cannot be freed outside the owning graph, and they can only be freed once in the owning graph."
TEST_F(MemoryNodes, OnlyItsGraphFreesTheBlock) {
  begin();
  const CUdeviceptr at = take();
  use(at);
  EXPECT_EQ(cuMemFreeAsync(at, s_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, s_), CUDA_ERROR_INVALID_VALUE);
  CUgraphExec const exec = instantiate(end());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 4 * mib);
}

// "Allocations which are not freed in the same graph can be freed by [...] launching a graph with a free node for that
// allocation". "If the allocation is freed in another graph, a free node can no longer be added to the owning graph."
TEST_F(MemoryNodes, OneGraphFreesABlockOfAnother) {
  CUdeviceptr at = 0;
  CUgraphExec const first = instantiate(allocating(&at));
  begin();
  use(at);
  ASSERT_EQ(cuMemFreeAsync(at, s_), CUDA_SUCCESS);
  CUgraphExec const second = instantiate(end());
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuGraphLaunch(first, s_), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphLaunch(second, s_), CUDA_SUCCESS);
  }
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0U);
}

// cuMemFreeAsync: "During stream capture, this function results in the creation of a free node and must therefore be
// passed the address of a graph allocation."
TEST_F(MemoryNodes, ACaptureFreesNothingButGraphsMemory) {
  const CUdeviceptr pools = take();
  begin();
  EXPECT_EQ(cuMemFreeAsync(pools, s_), CUDA_ERROR_INVALID_VALUE);
  static_cast<void>(end());
  EXPECT_EQ(cuMemFreeAsync(pools, s_), CUDA_SUCCESS);
}

// "Only one instantiation of the graph may exist at any point in time."
TEST_F(MemoryNodes, OneInstantiationAtATime) {
  CUdeviceptr at = 0;
  CUgraph const graph = allocating(&at);
  CUgraphExec const exec = instantiate(graph);
  CUgraphExec second = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
}

// cuDeviceGraphMemTrim: "Blocks which are not in use by a graph that is either currently executing or scheduled to
// execute are freed back to the operating system."
TEST_F(MemoryNodes, ItStaysWithItsGraphAndGoesBackWhenThatIsGoneAndTheDeviceIsTrimmed) {
  CUdeviceptr at = 0;
  CUgraph const graph = allocating(&at);
  CUgraphExec const exec = instantiate(graph);
  ASSERT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  use(at);  // it outlives the graph until it is freed
  ASSERT_EQ(cuMemFreeAsync(at, s_), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0U);
  EXPECT_EQ(simcuda::device(0).used_bytes(), 0U);
}

}  // namespace
}  // namespace gpumem
