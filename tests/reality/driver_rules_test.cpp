// A4, A9, A10, A12, B1: the driver calls that gpumem may make, and those that it must not.
#include <gmock/gmock.h>

#include "world.hpp"

extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext*, unsigned int, CUdevice);

namespace gpumem::reality {
namespace {

using DriverRules = Reality;

// A free often states a stream that is already destroyed. The driver leaves a query of a dead handle's id undefined,
// and the simulated driver in its harsh mode aborts.
TEST_F(DriverRules, A10AFreeThatStatesADeadStreamAsksTheDriverNothing) {
  open();
  CUstream const s = stream();
  void* const p = take(mib, s);
  use(s, p, mib);
  ASSERT_EQ(cuStreamSynchronize(s), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  give(p, {.stream = stream_ref{s}});
}

// No fence of this device covers a use on another device's stream: while it runs, no other stream may get the block.
class OtherContexts : public Reality, public testing::WithParamInterface<const char*> {
 protected:
  /// Requests 6 MiB of the pool's 8 MiB. Null while the block is not available to the stream.
  void* try_take(CUstream s) {
    const auto got = allocator_->try_allocate({.bytes = 6 * mib, .stream = {s}});
    return got ? *got : nullptr;
  }
  /// Tries twice: the second attempt sees the fence that the first one recorded.
  void* take_soon(CUstream s) {
    void* const first = try_take(s);
    return first != nullptr ? first : try_take(s);
  }
};

TEST_P(OtherContexts, A4AUseOnAnotherDevicesStreamKeepsTheBlock) {
  open({{"limit", "8MiB"}, {"stream_ids", GetParam()}});
  CUstream const s = stream();
  CUcontext peer = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(peer), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_SUCCESS);
  CUstream const far = stream();
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  void* const p = take(6 * mib, s);
  ASSERT_TRUE(allocator_->record_use(p, {far}).ok());
  simcuda::device(1).enqueue(simcuda::stream_of(far), 5'000'000'000);  // work of the other device on the block
  give(p);
  void* const again = take_soon(s);
  EXPECT_EQ(again, p);
  EXPECT_GE(simcuda::device(1).now_ns(), 5'000'000'000U) << "it was in use on device 1 still";
  if (again != nullptr) {
    EXPECT_TRUE(allocator_->try_deallocate(again).ok());
  }
}

TEST_P(OtherContexts, A4AUseOnAStreamOfAnotherContextKeepsTheBlock) {
  open({{"limit", "8MiB"}, {"stream_ids", GetParam()}});
  CUstream const s = stream();
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  CUstream const far = stream();
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  void* const p = take(6 * mib, s);
  ASSERT_TRUE(allocator_->record_use(p, {far}).ok());
  use(far, p, 6 * mib, 50'000'000);
  give(p);
  void* const again = take_soon(s);
  EXPECT_EQ(again, p);
  EXPECT_GE(simcuda::device(0).now_ns(), 50'000'000U) << "it was in use in the other context still";
  if (again != nullptr) {
    EXPECT_TRUE(allocator_->try_deallocate(again).ok());
  }
}
INSTANTIATE_TEST_SUITE_P(Ids, OtherContexts, testing::Values("query", "notify"),
                         [](const auto& i) { return std::string{i.param}; });

// The legacy stream never changes, so its identity needs no call.
TEST_F(DriverRules, A12TheLegacyStreamCostsNoCallToLearnWhichItIs) {
  open();
  give(take(mib, nullptr));
  const std::uint64_t before = simcuda::calls("cuStreamGetId") + simcuda::calls("cuStreamGetCaptureInfo") +
                               simcuda::calls("cuCtxGetId") + simcuda::calls("cuCtxGetCurrent") +
                               simcuda::calls("cuThreadExchangeStreamCaptureMode");
  for (int i = 0; i < 10; ++i) {
    void* const p = take(300 * 1024, nullptr);
    give(p);
  }
  const std::uint64_t after = simcuda::calls("cuStreamGetId") + simcuda::calls("cuStreamGetCaptureInfo") +
                              simcuda::calls("cuCtxGetId") + simcuda::calls("cuCtxGetCurrent") +
                              simcuda::calls("cuThreadExchangeStreamCaptureMode");
  EXPECT_EQ(after - before, 0U);
}

// One call for its identity and one for its capture.
TEST_F(DriverRules, A12APerThreadStreamCostsTwoCallsAtMost) {
  open();
  const auto of_driver = [] {
    std::uint64_t all = 0;
    for (const char* name : {"cuStreamGetId", "cuStreamGetCaptureInfo", "cuCtxGetId", "cuCtxGetCurrent",
                             "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"}) {
      all += simcuda::calls(name);
    }
    return all;
  };
  give(take(300 * 1024, CU_STREAM_PER_THREAD));
  const std::uint64_t before = of_driver();
  void* const p = take(300 * 1024, CU_STREAM_PER_THREAD);
  EXPECT_LE(of_driver() - before, 2U);
  give(p);
}

// A container or a virtual GPU always refuses exportable pages, so gpumem tries only once.
TEST_F(DriverRules, A12ARefusedPropertyOfPagesIsRemembered) {
  open({{"policy", "expandable"}}, {.bytes = 2048 * mib, .exportable = false});
  std::vector<void*> blocks{take(64 * mib, nullptr)};
  const std::uint64_t calls = simcuda::calls("cuMemCreate");
  const std::uint64_t runs = device_->calls()[static_cast<std::size_t>(device_call::create)];
  for (int i = 0; i < 4; ++i) blocks.push_back(take(64 * mib, nullptr));
  EXPECT_EQ(simcuda::calls("cuMemCreate") - calls,
            device_->calls()[static_cast<std::size_t>(device_call::create)] - runs);
  for (void* p : blocks) give(p);
}

TEST_F(DriverRules, A12ASliceOfACardIsKnownAsNvmlKnowsIt) {
  open({}, {.bytes = 2048 * mib, .mig = true});
  EXPECT_TRUE(device_->info().uuid.starts_with("MIG-")) << device_->info().uuid;
}

// B6: waiting for a fence must not keep a core busy.
TEST_F(DriverRules, B6FencesLetTheHostSleep) {
  open({{"limit", "8MiB"}, {"stream_reuse", "host"}});
  CUstream const a = stream();
  void* const p = take(6 * mib, a);
  use(a, p, 6 * mib, 50'000'000);
  give(p);
  const std::uint64_t before = simcuda::calls("cuEventQuery");
  void* const q = take(6 * mib, stream());
  EXPECT_EQ(q, p);
  EXPECT_GT(simcuda::calls("cuEventQuery"), before);
  EXPECT_LE(simcuda::calls("cuEventQuery") - before, 500U) << "it sleeps between its looks, most of the 50 ms";
  EXPECT_EQ(simcuda::spinning_waits(), 0U);
  give(q);
}

// B5: a request sets the context and the thread's capture mode once, however many fences it queries.
TEST_F(DriverRules, B5ManyFencesAreAskedInOneScope) {
  open({{"stream_ids", "notify"}, {"limit", "1500MiB"}});
  std::vector<CUstream> busy;
  for (int i = 0; i < 16; ++i) {
    busy.push_back(stream());
    void* const p = take(8 * mib, busy.back());
    use(busy.back(), p, 8 * mib, 1'000'000'000);
    give(p);
    ASSERT_TRUE(allocator_->stream_release({busy.back()}).ok());  // records its fence
  }
  const auto scopes = [] {
    return simcuda::calls("cuThreadExchangeStreamCaptureMode") + simcuda::calls("cuCtxGetId") +
           simcuda::calls("cuCtxGetCurrent");
  };
  CUstream const asks = stream();
  give(take(mib, asks));
  const std::uint64_t queries = simcuda::calls("cuEventQuery");
  const std::uint64_t before = scopes();
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 1600 * mib, .stream = {asks}}).ok());
  EXPECT_EQ(simcuda::calls("cuEventQuery"), queries) << "more than the limit asks nothing";
  give(take(300 * mib, asks));
  EXPECT_GE(simcuda::calls("cuEventQuery") - queries, 16U);
  EXPECT_LE(scopes() - before, 24U) << "four calls a fence before";
}

/// Checks that the stream's work did not wait for another stream's work, which takes an hour of virtual time.
void expect_done_within_the_hour(CUstream s) {
  CUevent e = nullptr;
  ASSERT_EQ(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_LT(simcuda::device(0).now_ns(), 3'600'000'000'000U) << "each waits for the other";
}

// B3: an event on the legacy stream waits for all blocking streams, and they wait for it. Here the first one's work
// waits for a signal that the second one sends.
TEST_F(DriverRules, B3AFenceBehindTheLegacyStreamOrdersNoBlockingStreams) {
  open({{"limit", "1GiB"}, {"free_wait", "0"}});
  const auto blocking = [] {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    return s;
  };
  CUstream const a = blocking();
  CUstream const b = blocking();
  void* const p = take(600 * mib, nullptr);
  void* const q = take(64 * mib, a);
  use(a, q, 64 * mib, 3'600'000'000'000);  // until b has sent its signal
  give(p);
  const auto fenced = [] { return simcuda::calls("cuEventRecord") + simcuda::calls("cuCtxRecordEvent"); };
  const std::uint64_t before = fenced();
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 700 * mib, .stream = {b}}).ok());
  EXPECT_GT(fenced(), before) << "the block of the legacy stream was wanted";
  void* const r = take(200 * mib, b);
  use(b, r, 200 * mib);
  expect_done_within_the_hour(b);
  give(q);
  give(r);
}

// B1: gpumem makes no stream wait for another one unless the program requests it. Here the first stream's work waits
// for a signal that the second one sends.
TEST_F(DriverRules, B1NoStreamWaitsForAnotherUnlessItIsAskedTo) {
  open({{"limit", "1GiB"}});
  CUstream const a = stream();
  CUstream const b = stream();
  void* const p = take(256 * mib, a);
  use(a, p, 256 * mib, 3'600'000'000'000);  // until b has sent its signal
  give(p);
  void* const q = take(256 * mib, b);
  use(b, q, 256 * mib);
  EXPECT_EQ(simcuda::calls("cuStreamWaitEvent"), 0U);
  expect_done_within_the_hour(b);
  give(q);
}

}  // namespace
}  // namespace gpumem::reality
