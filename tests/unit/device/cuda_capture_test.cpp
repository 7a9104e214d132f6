// Captures without calls of the program: noticed at the first allocation inside, and ended when the graph is destroyed.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/cuda_device.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

class CudaCapture : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    simcuda::configure({.devices = 1, .bytes = 512 * mib});
    device_ =
        *open_cuda_device({.ordinal = 0, .driver = *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress))});
    device* const raw = device_.get();
    settings with;
    ASSERT_TRUE(with.set("policy", "caching").ok());  // it returns no memory by itself
    ASSERT_TRUE(with.set("stream_ids", GetParam()).ok());
    ASSERT_TRUE(with.set("stream_reuse", "device")
                    .ok());  // memory of other streams is served at once, after a wait on the device
    ASSERT_TRUE(with.set("pools", "256MiB,256MiB").ok());
    allocator_ = *allocator::open({&raw, 1}, with);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&capturing_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override {
    for (const hazard& h : simcuda::device(0).hazards()) ADD_FAILURE() << h.to_string();
    for (int pool = 0; allocator_ != nullptr && pool < 2; ++pool) EXPECT_TRUE(allocator_->check(pool).ok());
    allocator_.reset();
    device_.reset();
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  }

  [[nodiscard]] bool asks() const { return std::string_view{GetParam()} == "query"; }
  /// Under `notify` the program has to call capture_begin; under `query` it need not.
  void begin() {
    if (!asks()) {
      ASSERT_TRUE(allocator_->capture_begin({capturing_}).ok());
    }
    ASSERT_EQ(cuStreamBeginCapture(capturing_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  }
  CUgraph end() {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(capturing_, &graph), CUDA_SUCCESS) << "the capture was spoilt";
    if (!asks()) {
      EXPECT_TRUE(allocator_->capture_end({capturing_}).ok());
    }
    return graph;
  }
  void* take(std::uint64_t bytes, CUstream s, int pool = 0) {
    const auto got = allocator_->try_allocate({.bytes = bytes, .stream = {s}, .device = pool});
    EXPECT_TRUE(got.ok()) << got.why().message();
    if (!got.ok()) return nullptr;
    simcuda::device(0).handed_out(reinterpret_cast<std::uintptr_t>(*got), bytes, simcuda::stream_of(s));
    return *got;
  }
  void give(void* p) {
    simcuda::device(0).given_back(reinterpret_cast<std::uintptr_t>(p));
    EXPECT_TRUE(allocator_->try_deallocate(p).ok());
  }

  std::unique_ptr<device> device_;
  std::unique_ptr<allocator> allocator_;
  CUstream capturing_ = nullptr;
  CUstream other_ = nullptr;
};

TEST_P(CudaCapture, BlocksStayWithTheGraphUntilItAndItsInstancesAreDestroyed) {
  begin();
  void* const p = take(100 * mib, capturing_);
  simcuda::use(capturing_, 1000, reinterpret_cast<std::uintptr_t>(p), 100 * mib);
  give(p);
  CUgraph graph = end();
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  void* const beside = take(100 * mib, capturing_);
  EXPECT_NE(beside, p) << "the graph will write there again";
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 100 * mib, .stream = {other_}}).ok()) << "an instance is still there";
  ASSERT_EQ(cuGraphLaunch(exec, other_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  simcuda::finish_destructors();
  EXPECT_EQ(take(100 * mib, other_), p) << "nothing can run it any more";
  give(p);
  give(beside);
}

TEST_P(CudaCapture, NothingThatWouldSpoilItIsDoneMeanwhileInAnyPool) {
  void* const early = take(200 * mib, other_, 1);
  begin();
  void* const inside = take(mib, capturing_);
  give(early);
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 200 * mib, .stream = {}, .device = 1}).ok())
      << "only the other stream's memory would do, and a fence would spoil the capture";
  static_cast<void>(allocator_->trim(0));
  static_cast<void>(allocator_->trim(1));
  give(inside);
  CUgraph graph = end();
  ASSERT_NE(graph, nullptr);
  void* const again = take(mib, capturing_);  // its end is noticed here
  EXPECT_NE(allocator_->try_allocate({.bytes = 200 * mib, .stream = {other_}, .device = 1}).ok(), false);
  give(again);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_P(CudaCapture, OneAfterTheOtherEachHasItsOwnBlocks) {
  begin();
  void* const first = take(4 * mib, capturing_);
  give(first);
  CUgraph one = end();
  begin();
  void* const second = take(4 * mib, capturing_);
  EXPECT_NE(first, second);
  give(second);
  CUgraph two = end();
  EXPECT_EQ(cuGraphDestroy(two), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(one), CUDA_SUCCESS);
  void* const big = take(200 * mib, other_);
  give(big);
}

TEST_P(CudaCapture, AStreamThatDiesAfterItsCaptureLeavesNothingToTheNextOneWithItsHandle) {
  begin();
  void* const inside = take(100 * mib, capturing_);
  give(inside);
  CUgraph graph = end();
  if (!asks()) {
    ASSERT_TRUE(allocator_->stream_release({capturing_}).ok());
  }
  ASSERT_EQ(cuStreamDestroy(capturing_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  const std::uint64_t asked = simcuda::calls("cuStreamGetId");
  give(take(mib, nullptr));  // notices the end of the graph, and uses no dead handle for it
  EXPECT_EQ(simcuda::calls("cuStreamGetId"), asked);
  CUstream next = nullptr;
  ASSERT_EQ(cuStreamCreate(&next, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(next, capturing_);
  void* const p = take(100 * mib, next);
  if (!asks()) {
    EXPECT_EQ(p, inside) << "the graph is gone, its memory is not";
  }
  give(p);
  EXPECT_GE(allocator_->trim(0)->returned_bytes, 100 * mib) << "what the graph left is free, if only behind all work";
}

TEST_P(CudaCapture, AGraphMayOutliveTheAllocator) {
  begin();
  give(take(mib, capturing_));
  CUgraph graph = end();
  allocator_.reset();
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS) << "which tells an allocator that is gone";
}

INSTANTIATE_TEST_SUITE_P(Ids, CudaCapture, ::testing::Values("query", "notify"),
                         [](const auto& i) { return std::string{i.param}; });

}  // namespace
}  // namespace gpumem
