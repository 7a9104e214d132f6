// A1, A2, A3: captures that the program does not announce.
#include <algorithm>
#include <barrier>
#include <thread>

#include "world.hpp"

extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext*, unsigned int, CUdevice);

namespace gpumem::reality {
namespace {

using Captures = Reality;

TEST_F(Captures, A1AGraphThatGoesBeforeTheNextCaptureDoesNotSpoilIt) {
  open();
  CUstream const s = stream();
  begin(s);
  give(take(mib, s));
  CUgraph const first = end(s);
  ASSERT_EQ(cuGraphDestroy(first), CUDA_SUCCESS);
  simcuda::finish_destructors();
  begin(s);
  give(take(mib, s));  // learns that the first graph is gone
  ASSERT_NE(end(s), nullptr);
}

TEST_F(Captures, A1ABlockOfAnotherStreamFreedInOneCaptureDoesNotSpoilTheNext) {
  open();
  CUstream const s = stream();
  CUstream const other = stream();
  void* const shared = take(mib, s);
  ASSERT_TRUE(allocator_->record_use(shared, {other}).ok());
  use(other, shared, mib);
  begin(s);
  give(take(mib, s));
  give(shared);
  ASSERT_NE(end(s), nullptr);
  begin(s);
  give(take(mib, s));  // learns that the first capture is over
  ASSERT_NE(end(s), nullptr);
}

TEST_F(Captures, A1ABlockOfAnotherStreamFreedAtTheBeginOfACaptureDoesNotSpoilIt) {
  open();
  CUstream const s = stream();
  CUstream const other = stream();
  void* const shared = take(mib, s);
  ASSERT_TRUE(allocator_->record_use(shared, {other}).ok());
  use(other, shared, mib);
  begin(s);
  give(shared);  // before anything was allocated inside
  give(take(mib, s));
  ASSERT_NE(end(s), nullptr);
}

TEST_F(Captures, A1TheBlocksComeBackAfterTheCapture) {
  open({{"limit", "256MiB"}});
  CUstream const s = stream();
  CUstream const other = stream();
  void* const shared = take(200 * mib, s);
  ASSERT_TRUE(allocator_->record_use(shared, {other}).ok());
  use(other, shared, 200 * mib);
  begin(s);
  give(shared);
  give(take(mib, s));
  CUgraph const graph = end(s);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  simcuda::device(0).advance_by(1'000'000);
  void* const again = take(200 * mib, s);
  EXPECT_NE(again, nullptr);
  if (again != nullptr) give(again);
}

// Any thread may notice the graphs first, and several may process the same graphs.
TEST_F(Captures, AnyNumberOfThreadsLearnOfGoneGraphsAtOnce) {
  open();
  constexpr std::size_t threads = 4;
  CUstream const s = stream();
  std::vector<CUstream> others;
  for (std::size_t i = 0; i < threads; ++i) others.push_back(stream());
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 3; ++i) {
      begin(s);
      give(take(mib, s));
      ASSERT_EQ(cuGraphDestroy(end(s)), CUDA_SUCCESS);
    }
    simcuda::finish_destructors();
    std::barrier together{static_cast<std::ptrdiff_t>(threads)};
    std::vector<std::thread> all;
    for (std::size_t i = 0; i < threads; ++i) {
      all.emplace_back([&, i] {
        ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
        together.arrive_and_wait();
        const auto got = allocator_->try_allocate({.bytes = mib, .stream = {others[i]}});
        ASSERT_TRUE(got.ok()) << got.why().message();
        EXPECT_TRUE(allocator_->try_deallocate(*got).ok());
      });
    }
    for (std::thread& each : all) each.join();
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
  }
}

// A typical server captures once, replays for ever, and works on other streams meanwhile. The capturing stream
// allocates nothing more, and its graph lives on.
class EndedCaptures : public Reality, public testing::WithParamInterface<unsigned> {
 protected:
  CUstream capturing_ = nullptr;
  CUgraph graph_ = nullptr;
  void* kept_ = nullptr;

  void capture_once() {
    open({{"limit", "1GiB"}, {"policy", "caching"}});
    ASSERT_EQ(cuStreamCreate(&capturing_, GetParam()), CUDA_SUCCESS);
    begin(capturing_);
    kept_ = take(16 * mib, capturing_);
    use(capturing_, kept_, 16 * mib);
    graph_ = end(capturing_);
    if (GetParam() == CU_STREAM_NON_BLOCKING) {
      ASSERT_TRUE(allocator_->captures_ended(0).ok());  // as PyTorch's hook says; of blocking streams the driver tells
    }
  }
};

TEST_P(EndedCaptures, A2OtherStreamsShareTheirMemoryAgain) {
  capture_once();
  CUstream const a = stream();
  CUstream const b = stream();
  for (int i = 0; i < 4; ++i) {
    void* const p = take(512 * mib, a);
    use(a, p, 512 * mib);
    give(p);
    ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
    give(take(mib, b));  // records the fence, or sees it done
    void* const q = take(512 * mib, b);
    use(b, q, 512 * mib);
    give(q);
    ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
    give(take(mib, a));
  }
  EXPECT_LE(reserved(), 600 * mib) << "each stream has taken memory of its own";
  const result<trim_result> trimmed = allocator_->trim(0);
  ASSERT_TRUE(trimmed.ok());
  EXPECT_LE(reserved(), 32 * mib) << "all but the graph's can be given back";
  // The graph's own memory is unchanged.
  void* const other = take(16 * mib, b);
  EXPECT_NE(other, kept_);
  give(other);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
}

// The program may destroy the stream after the capture, so gpumem must not query it again.
TEST_P(EndedCaptures, A2TheCapturingStreamMayBeGone) {
  capture_once();
  ASSERT_EQ(cuStreamDestroy(capturing_), CUDA_SUCCESS);
  CUstream const a = stream();
  CUstream const b = stream();
  void* const p = take(512 * mib, a);
  give(p);
  give(take(mib, b));
  void* const q = take(900 * mib, b);
  ASSERT_NE(q, nullptr);
  give(q);
}

// A stream's second capture is a new graph, and does not get the memory of the first.
TEST_P(EndedCaptures, A2TwoCapturesOfOneStreamAreTwoGraphs) {
  capture_once();
  CUstream const a = stream();
  give(take(mib, a));
  begin(capturing_);
  void* const second = take(16 * mib, capturing_);
  EXPECT_NE(second, kept_);
  give(take(mib, a));
  void* const third = take(16 * mib, a);
  EXPECT_NE(third, kept_);
  give(third);
  ASSERT_NE(end(capturing_), nullptr);
}
INSTANTIATE_TEST_SUITE_P(Streams, EndedCaptures, testing::Values(0U, unsigned{CU_STREAM_NON_BLOCKING}),
                         [](const auto& i) { return i.param == 0 ? std::string{"blocking"} : std::string{"told"}; });

// A stream of device 0 uses a block of device 1. The fence is an event on device 0, so it must wait for the capture's
// end.
TEST_F(Captures, A1AFenceForAnotherDevicesBlockDoesNotSpoilIt) {
  open();
  const auto* const driver = *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
  const auto second = *open_cuda_device({.ordinal = 1, .driver = driver});
  std::array<device*, 2> both{device_.get(), second.get()};
  allocator_ = *allocator::open(both, {});
  CUstream const user = stream();
  CUstream const s = stream();
  const auto p = allocator_->try_allocate({.bytes = 4 * mib, .device = 1});
  ASSERT_TRUE(p.ok()) << p.why().message();
  ASSERT_TRUE(allocator_->record_use(*p, {user}).ok());
  begin(s);
  void* const own = take(mib, s);
  ASSERT_TRUE(allocator_->try_deallocate(*p).ok());
  ASSERT_TRUE(allocator_->trim(1).ok());  // records what fences are missing, and would wait for them
  ASSERT_NE(end(s), nullptr);
  give(own);
  void* const learns = take(512, s);
  give(learns);
  ASSERT_TRUE(allocator_->trim(1).ok());
  EXPECT_EQ(allocator_->stats(1)->reserved_bytes, 0U) << "it waits for the fence now";
  allocator_.reset();
}

// A stream that waits for a capturing stream joins the capture unannounced. A fence on it would be an event of the
// capture, which the host must not query.
TEST_F(Captures, AUseOfAStreamThatJoinedIsFencedAfterTheCapture) {
  open({{"stream_ids", "notify"}, {"limit", "16MiB"}});
  CUstream const s = stream();
  CUstream const joined = stream();
  CUstream const other = stream();
  void* const shared = take(12 * mib, other);
  ASSERT_TRUE(allocator_->record_use(shared, {joined}).ok());
  use(joined, shared, 12 * mib, 1'000'000);
  ASSERT_TRUE(allocator_->capture_begin({s}).ok());
  begin(s);
  wait(joined, s);
  give(shared);
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 12 * mib, .stream = {other}}).ok()) << "in use still";
  wait(s, joined);
  ASSERT_NE(end(s), nullptr);
  ASSERT_TRUE(allocator_->capture_end({s}).ok());
  simcuda::device(0).advance_by(2'000'000);
  const auto again = allocator_->try_allocate({.bytes = 12 * mib, .stream = {other}});  // records the fence, and waits
  ASSERT_TRUE(again.ok()) << again.why().message();
  EXPECT_EQ(allocator_->stats(0)->leaked_bytes, 0U);
  EXPECT_TRUE(allocator_->try_deallocate(*again).ok());
}

// A request searches the memory that other streams freed. It must skip a live graph's block, even if that fits best;
// otherwise the request would wait for every stream.
class Reuse : public Reality, public testing::WithParamInterface<const char*> {};
TEST_P(Reuse, SkipsTheMemoryOfALiveGraphAndWaitsForNoOtherWork) {
  open({{"stream_reuse", GetParam()}, {"stream_ids", "notify"}, {"limit", "32MiB"}});
  CUstream const s = stream();
  CUstream const a = stream();
  CUstream const b = stream();
  CUstream const slow = stream();
  ASSERT_TRUE(allocator_->capture_begin({s}).ok());
  begin(s);
  void* const own = take(8 * mib, s);
  give(own);
  ASSERT_NE(end(s), nullptr);
  ASSERT_TRUE(allocator_->capture_end({s}).ok());
  void* const p = take(16 * mib, a);
  void* const q = take(mib, slow);
  std::vector<void*> rest;
  for (;;) {
    const auto got = allocator_->try_allocate({.bytes = mib, .stream = {b}});
    if (!got.ok()) break;
    rest.push_back(*got);
  }
  use(slow, q, mib, 1'000'000'000);
  give(q);
  give(p);
  void* const got = take(7 * mib, b);
  EXPECT_EQ(got, p);
  EXPECT_LE(simcuda::calls("cuStreamWaitEvent"), 1U) << "behind a's work alone";
  EXPECT_LT(simcuda::device(0).now_ns(), 1'000'000'000U);
  give(got);
  for (void* r : rest) EXPECT_TRUE(allocator_->try_deallocate(r).ok());
}
INSTANTIATE_TEST_SUITE_P(Ways, Reuse, testing::Values("device", "host"),
                         [](const auto& i) { return std::string{i.param}; });

// A stream that joined the capture frees a block of it. The capturing stream must not get the block back, because no
// order exists between it and the joined stream's use at each replay.
TEST_F(Captures, A3ABlockThatAnotherStreamOfTheCaptureFreedIsNotHandedToTheFirst) {
  open();
  CUstream const s = stream();
  CUstream const joined = stream();
  begin(s);
  void* const p = take(4 * mib, s);
  use(s, p, 4 * mib);
  wait(joined, s);
  use(joined, p, 4 * mib);
  give(p, {.stream = stream_ref{joined}});
  const auto got = allocator_->try_allocate({.bytes = 4 * mib, .stream = {s}});
  ASSERT_TRUE(got.ok());
  EXPECT_NE(*got, p) << "a race at each replay";
  wait(s, joined);
  CUgraph const graph = end(s);
  EXPECT_TRUE(allocator_->try_deallocate(*got).ok());
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  static_cast<void>(cuCtxSynchronize());
  static_cast<void>(allocator_->trim(0));
  void* const after = take(mib, s);  // with the graph all of it is free again
  give(after);
}

TEST_F(Captures, A3BlocksFreedOnTheCapturingStreamAreReusedThereAtOnce) {
  open();
  CUstream const s = stream();
  begin(s);
  void* const p = take(4 * mib, s);
  give(p, {.stream = stream_ref{s}});
  EXPECT_EQ(take(4 * mib, s), p);
  give(p);
  static_cast<void>(end(s));
}

// The handle of the per-thread default stream is equal in all threads, but names a different stream in each.
class PerThread : public Reality, public testing::WithParamInterface<const char*> {
 protected:
  [[nodiscard]] bool announces() const { return GetParam() == std::string{"notify"}; }
  /// Runs `act` on another thread, which has the same current context.
  template <typename Act>
  void on_another_thread(const Act& act) {
    std::thread{[&] {
      ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      act();
    }}.join();
  }
};

TEST_P(PerThread, ACaptureIsNotEndedByAnotherThreadsRequest) {
  open({{"stream_ids", GetParam()}});
  CUstream const created = stream();
  void* const freed = take(64 * mib, created);
  give(freed);
  if (announces()) {
    ASSERT_TRUE(allocator_->capture_begin({CU_STREAM_PER_THREAD}).ok());
  }
  begin(CU_STREAM_PER_THREAD);
  void* const inside = take(mib, CU_STREAM_PER_THREAD);
  void* outside = nullptr;
  on_another_thread([&] {
    outside = take(80 * mib, CU_STREAM_PER_THREAD);  // wants the memory of the other stream
    static_cast<void>(allocator_->trim(0));
  });
  give(inside);
  void* const again = take(mib, CU_STREAM_PER_THREAD);
  EXPECT_EQ(again, inside) << "the capture is still under way";
  give(again);
  ASSERT_NE(end(CU_STREAM_PER_THREAD), nullptr);
  if (announces()) {
    EXPECT_TRUE(allocator_->capture_end({CU_STREAM_PER_THREAD}).ok());
  }
  give(outside);
}

// The first thread to end ends only its own capture.
TEST_P(PerThread, ACaptureIsNotEndedByAnotherThreadsEnd) {
  open({{"stream_ids", GetParam()}});
  std::barrier both{2};
  void* kept = nullptr;
  std::thread first{[&] {
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_TRUE(allocator_->capture_begin({CU_STREAM_PER_THREAD}).ok());
    both.arrive_and_wait();
    both.arrive_and_wait();
    kept = take(mib, CU_STREAM_PER_THREAD);
    give(kept);
    EXPECT_TRUE(allocator_->capture_end({CU_STREAM_PER_THREAD}).ok());
  }};
  std::thread second{[&] {
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    both.arrive_and_wait();
    EXPECT_EQ(allocator_->capture_end({CU_STREAM_PER_THREAD}).code(), errc::invalid_argument);
    ASSERT_TRUE(allocator_->capture_begin({CU_STREAM_PER_THREAD}).ok());
    EXPECT_TRUE(allocator_->capture_end({CU_STREAM_PER_THREAD}).ok());
    EXPECT_TRUE(allocator_->captures_ended(0).ok());
    both.arrive_and_wait();
  }};
  first.join();
  second.join();
  CUstream const other = stream();
  void* const got = take(mib, other);
  EXPECT_NE(got, kept) << "it is the graph's";
  give(got);
}
INSTANTIATE_TEST_SUITE_P(Ids, PerThread, testing::Values("query", "notify"),
                         [](const auto& i) { return std::string{i.param}; });

// A graph's work runs in the context of its capture, and is fenced there after the graph is destroyed.
class ForeignGraphs : public Reality, public testing::WithParamInterface<const char*> {};

TEST_P(ForeignGraphs, AreFencedInTheContextThatCapturedThem) {
  open({{"stream_ids", GetParam()}, {"limit", "8MiB"}});
  const bool announced = GetParam() == std::string{"notify"};
  CUstream const own = stream();
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  CUstream const far = stream();
  if (announced) {
    ASSERT_TRUE(allocator_->capture_begin({far}).ok());
  }
  begin(far);
  void* const p = take(6 * mib, far);
  use(far, p, 6 * mib, 50'000'000);
  give(p);
  CUgraph const graph = end(far);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  const graph_ref left = announced ? *allocator_->capture_end({far}) : graph_ref{};
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  if (announced) {
    ASSERT_TRUE(allocator_->graph_release(left).ok());
  }
  for (int i = 0; i < 2; ++i) {
    const auto got = allocator_->try_allocate({.bytes = 6 * mib, .stream = {own}});
    if (!got) continue;
    simcuda::device(0).handed_out(number(*got), 6 * mib, simcuda::stream_of(own));  // the referee tells a hazard
    give(*got);
  }
  simcuda::device(0).advance_by(60'000'000);
  static_cast<void>(allocator_->try_allocate({.bytes = 6 * mib, .stream = {own}}));  // sees the fence
  const auto got = allocator_->try_allocate({.bytes = 6 * mib, .stream = {own}});
  EXPECT_EQ(allocator_->stats(0)->leaked_bytes, 0U);
  if (got) give(*got);
}
INSTANTIATE_TEST_SUITE_P(Ids, ForeignGraphs, testing::Values("query", "notify"),
                         [](const auto& i) { return std::string{i.param}; });

// A capturing stream of another device takes memory of this device. The other device's pool does not know the stream,
// and an event of that pool on its context would invalidate the capture.
TEST_F(Captures, ACaptureOnAnotherDevicesStreamIsNotSpoiltByThatDevicesPool) {
  open();
  const auto* const driver = *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
  const auto second = *open_cuda_device({.ordinal = 1, .driver = driver});
  std::array<device*, 2> both{device_.get(), second.get()};
  allocator_ = *allocator::open(both, {});
  CUcontext context_of_second = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_of_second, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(context_of_second), CUDA_SUCCESS);
  CUstream const far = stream();
  CUstream const a = stream();
  CUstream const b = stream();
  const auto of_second = allocator_->try_allocate({.bytes = 64 * mib, .stream = {a}, .device = 1});
  ASSERT_TRUE(of_second.ok());
  ASSERT_TRUE(allocator_->try_deallocate(*of_second).ok());
  begin(far);
  const auto inside = allocator_->try_allocate({.bytes = mib, .stream = {far}, .device = 0});
  ASSERT_TRUE(inside.ok()) << inside.why().message();
  const auto wants = allocator_->try_allocate({.bytes = 80 * mib, .stream = {b}, .device = 1});
  EXPECT_TRUE(wants.ok()) << wants.why().message();
  EXPECT_TRUE(allocator_->trim(1).ok());
  ASSERT_NE(end(far), nullptr);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(allocator_->try_deallocate(*inside).ok());
  EXPECT_TRUE(allocator_->try_deallocate(*wants).ok());
  allocator_.reset();
}

// The capture is not announced and its stream has not allocated. The driver reports captures of blocking streams.
class Unnoticed : public Reality, public testing::WithParamInterface<const char*> {};

TEST_P(Unnoticed, ACaptureOfABlockingStreamIsNotSpoilt) {
  open({{"policy", GetParam()}, {"limit", "256MiB"}});
  CUstream capturing = nullptr;
  ASSERT_EQ(cuStreamCreate(&capturing, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  CUstream const a = stream();
  CUstream const b = stream();
  void* const shared = take(mib, a);
  ASSERT_TRUE(allocator_->record_use(shared, {b}).ok());
  void* const freed = take(160 * mib, a);
  give(freed);
  begin(capturing);
  const auto got = allocator_->try_allocate({.bytes = 200 * mib, .stream = {b}});  // wants what `a` freed
  const result<trim_result> trimmed = allocator_->trim(0);
  ASSERT_TRUE(trimmed.ok());
  EXPECT_EQ(trimmed->returned_bytes, 0U);
  EXPECT_GT(trimmed->pending_bytes, 0U) << "withheld, and said to be";
  give(shared);
  EXPECT_TRUE(allocator_->stream_release({a}).ok());
  ASSERT_TRUE(allocator_->set_limit(0, 16 * mib).ok());
  ASSERT_NE(end(capturing), nullptr);
  if (got) {
    EXPECT_TRUE(allocator_->try_deallocate(*got).ok());
  }
  ASSERT_TRUE(allocator_->set_limit(0, 256 * mib).ok());
  simcuda::device(0).advance_by(1'000'000);
  ASSERT_TRUE(allocator_->trim(0).ok());
  give(take(200 * mib, b));
}
INSTANTIATE_TEST_SUITE_P(Policies, Unnoticed, testing::Values("growth", "caching", "expandable"),
                         [](const auto& i) { return std::string{i.param}; });

// If the driver does not report a stream's context, gpumem must not assume that of the device.
TEST_F(Captures, AStreamOfUnknownContextIsRefusedAndNothingChanges) {
  open({{"limit", "8MiB"}});
  CUstream const s = stream();
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  CUstream const far = stream();
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  void* const p = take(6 * mib, s);
  const auto failing = [](const auto& call) {
    simcuda::fail("cuStreamGetCtx", 1, CUDA_ERROR_UNKNOWN);
    return call();
  };
  EXPECT_EQ(failing([&] { return allocator_->record_use(p, {far}); }).code(), errc::device_error);
  EXPECT_EQ(failing([&] { return allocator_->try_allocate({.bytes = 512, .stream = {far}}); }).code(),
            errc::device_error);
  EXPECT_EQ(failing([&] { return allocator_->try_deallocate(p, {.stream = stream_ref{far}}); }).code(),
            errc::device_error);
  EXPECT_EQ(failing([&] { return allocator_->open_region(0, {far}); }).code(), errc::device_error);
  EXPECT_EQ(failing([&] { return allocator_->capture_begin({far}); }).code(), errc::device_error);
  EXPECT_EQ(allocator_->stats(0)->live_blocks, 1U);
  ASSERT_TRUE(allocator_->record_use(p, {far}).ok()) << "the driver tells now";
  use(far, p, 6 * mib, 50'000'000);
  give(p);
  for (int i = 0; i < 2; ++i) {
    const auto got = allocator_->try_allocate({.bytes = 6 * mib, .stream = {s}});
    if (got) simcuda::device(0).handed_out(number(*got), 6 * mib, simcuda::stream_of(s));
    if (got) give(*got);
  }
}

// If the driver refuses a call of a page step, pages that the step has mapped stay mapped until the capture's end.
struct failing_page_call {
  std::string policy;
  std::string function;
  unsigned nth;
  CUresult error;
};
class FailingPages : public Reality, public testing::WithParamInterface<failing_page_call> {};

TEST_P(FailingPages, SpoilNoCapture) {
  const auto& [policy, function, nth, error] = GetParam();
  open({{"policy", policy.c_str()}});
  CUstream const s = stream();
  give(take(6 * mib, s));
  begin(s);
  void* const inside = take(2 * mib, s);
  simcuda::fail(function, nth, error);
  const auto failed = allocator_->try_allocate({.bytes = 300 * mib, .stream = {s}});
  simcuda::pause_failures(true);
  const auto more = allocator_->try_allocate({.bytes = 80 * mib, .stream = {s}});
  EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
  CUgraph const graph = end(s);
  ASSERT_NE(graph, nullptr);
  give(inside);
  for (const auto& got : {failed, more}) {
    if (got) {
      EXPECT_TRUE(allocator_->try_deallocate(*got).ok());
    }
  }
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  give(take(512, s));
  give(take(400 * mib, s));
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_TRUE(allocator_->trim(0).ok());
  EXPECT_EQ(allocator_->stats(0)->leaked_bytes, 0U) << "what stayed mapped could be unmapped";
  EXPECT_EQ(simcuda::device(0).used_bytes(), reserved());
  simcuda::pause_failures(false);
}
std::vector<failing_page_call> failing_page_calls() {
  std::vector<failing_page_call> all;
  for (const char* policy : {"expandable", "growth:backing=mapped"}) {
    for (const char* function : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
      for (const unsigned nth : {1U, 2U, 3U}) {
        for (const CUresult error : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
          all.push_back({policy, function, nth, error});
        }
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Calls, FailingPages, testing::ValuesIn(failing_page_calls()), [](const auto& i) {
  return i.param.policy.substr(0, 6) + i.param.function + std::to_string(i.param.nth) +
         (i.param.error == CUDA_ERROR_OUT_OF_MEMORY ? "Full" : "Invalid");
});

// PyTorch reports the ends of its captures. Another library's stream may be destroyed by then, so no query of it.
TEST_F(Captures, AReportedEndQueriesOnlyStreamsThatReportTheEnd) {
  open();
  CUstream const others = stream();
  CUstream const reported = stream();
  begin(others);
  give(take(mib, others));
  ASSERT_NE(end(others), nullptr);
  ASSERT_EQ(cuStreamDestroy(others), CUDA_SUCCESS);
  begin(reported);
  const auto inside = allocator_->try_allocate({.bytes = mib, .stream = {reported}, .reports_capture_end = true});
  ASSERT_TRUE(inside.ok());
  EXPECT_TRUE(allocator_->try_deallocate(*inside).ok());
  EXPECT_TRUE(allocator_->reported_captures_ended(0).ok());
  const auto again = allocator_->try_allocate({.bytes = mib, .stream = {reported}});
  EXPECT_EQ(*again, *inside) << "the capture is still under way";
  EXPECT_TRUE(allocator_->try_deallocate(*again).ok());
  ASSERT_NE(end(reported), nullptr);
  EXPECT_TRUE(allocator_->reported_captures_ended(0).ok());  // the driver leaves it undefined to ask the other one
  EXPECT_EQ(allocator_->reported_captures_ended(7).code(), errc::wrong_device);
}

// A finished capture of a blocking stream delays nothing, even if its graph lives and its stream makes no more calls.
TEST_F(Captures, ATrimAsksWhetherANoticedCaptureIsOver) {
  open();
  CUstream capturing = nullptr;
  ASSERT_EQ(cuStreamCreate(&capturing, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  CUstream const a = stream();
  void* const p = take(512 * mib, a);
  begin(capturing);
  give(take(mib, capturing));
  give(p, {.stream = stream_ref{a}});
  EXPECT_EQ(allocator_->trim(0)->returned_bytes, 0U) << "it is under way";
  ASSERT_NE(end(capturing), nullptr);
  ASSERT_EQ(cuStreamDestroy(capturing), CUDA_SUCCESS);
  EXPECT_GE(allocator_->trim(0)->returned_bytes, 512 * mib);
}

// The graph lives, and its non-blocking stream makes no more calls. Other streams still reuse each other's memory.
TEST_F(Captures, ANoticedCaptureWithoutAReportedEndLeavesTheFencesOfOtherStreams) {
  open();
  CUstream const capturing = stream();
  CUstream const a = stream();
  CUstream const b = stream();
  void* const p = take(512 * mib, a);
  begin(capturing);
  give(take(mib, capturing));
  CUgraph const graph = end(capturing);
  use(a, p, 512 * mib);
  give(p, {.stream = stream_ref{a}});  // names the stream, which therefore lives
  simcuda::device(0).advance_by(1'000'000);
  const std::uint64_t before = reserved();
  void* const q = take(512 * mib, b);
  EXPECT_EQ(q, p);
  EXPECT_EQ(reserved(), before);
  give(q, {.stream = stream_ref{b}});
  EXPECT_EQ(allocator_->trim(0)->returned_bytes, 0U) << "it may be under way, for all that the driver tells";
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  EXPECT_GE(allocator_->trim(0)->returned_bytes, 512 * mib);
}

// The threads' caches still work as well.
TEST_F(Captures, ANoticedCaptureWithoutAReportedEndLeavesTheCachesOfOtherStreams) {
  open();
  CUstream const capturing = stream();
  CUstream const a = stream();
  begin(capturing);
  give(take(mib, capturing));
  ASSERT_NE(end(capturing), nullptr);
  for (int i = 0; i < 1000; ++i) give(take(4096, a));  // until the pool is calm
  const std::uint64_t locks = allocator_->stats(0)->locks;
  for (int i = 0; i < 100; ++i) give(take(4096, a));
  EXPECT_LE(allocator_->stats(0)->locks - locks, 5U);
}

// The stream captures again. Before and inside the capture it frees older blocks: the graph gets none of them.
TEST_F(Captures, TheCachesOfTheCapturingStreamServeNoCapture) {
  open();
  CUstream const s = stream();
  std::vector<void*> before;
  for (int i = 0; i < 8; ++i) before.push_back(take(4096, s));
  give(before[0]);
  begin(s);
  void* const first = take(4096, s);
  for (std::size_t i = 1; i < before.size(); ++i) give(before[i]);
  for (int i = 0; i < 4; ++i) {
    void* const inside = take(4096, s);
    EXPECT_EQ(std::ranges::find(before, inside), before.end()) << "the graph must not share it";
  }
  give(first);
  ASSERT_NE(end(s), nullptr);
}

// A stream was destroyed after its capture, and another stream has its handle: the capture counts as ended.
TEST_F(Captures, AReusedHandleEndsTheCaptureOfTheStreamThatHadIt) {
  open({{"limit", "1GiB"}});
  CUstream const a = stream();
  CUstream const b = stream();
  void* const p = take(512 * mib, a);
  CUstream const first = stream();
  begin(first);
  give(take(mib, first));
  ASSERT_NE(end(first), nullptr);
  ASSERT_EQ(cuStreamDestroy(first), CUDA_SUCCESS);
  CUstream const second = stream();
  ASSERT_EQ(second, first) << "the driver gives the handle again";
  begin(second);
  give(take(mib, second));
  CUgraph const graph = end(second);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  simcuda::finish_destructors();
  give(p);
  give(take(600 * mib, b));  // only in the place of what `a` freed
}

// The driver refuses to tell the id of a stream that captures, and invalidates the capture.
class AskedInACapture : public Reality, public testing::WithParamInterface<bool> {
 protected:
  /// A stream that gpumem knows, or one that it has not seen.
  CUstream stream_before_capture() {
    CUstream const s = stream();
    if (GetParam()) give(take(mib, s));
    return s;
  }
};

TEST_P(AskedInACapture, RequestsOfTwoStreamsGiveTwoSlotsAndSpoilNothing) {
  open();
  CUstream const s = stream_before_capture();
  CUstream const joined = stream_before_capture();
  begin(s);
  void* const first = take(4 * mib, s);
  wait(joined, s);
  void* const second = take(4 * mib, joined);
  EXPECT_NE(first, second);
  give(first, {.stream = stream_ref{s}});
  EXPECT_EQ(take(4 * mib, s), first) << "the graph's own";
  give(second, {.stream = stream_ref{joined}});
  wait(s, joined);
  CUgraph const graph = end(s);
  EXPECT_NE(take(4 * mib, s), first) << "the graph has it";
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_P(AskedInACapture, AUseAndAFreeBeforeAnyRequestSpoilNothing) {
  open();
  CUstream const other = stream();
  void* const used = take(4 * mib, other);
  void* const freed = take(4 * mib, other);
  CUstream const s = stream_before_capture();
  begin(s);
  EXPECT_TRUE(allocator_->record_use(used, {s}).ok());
  give(freed, {.stream = stream_ref{s}});
  for (int i = 0; i < 40; ++i) give(take(mib, other), {.stream = stream_ref{other}});
  ASSERT_NE(end(s), nullptr);
  give(used);
}

TEST_P(AskedInACapture, TheDefaultStreamOfAThreadIsOneStreamBeforeAndAfter) {
  open();
  if (GetParam()) give(take(mib, CU_STREAM_PER_THREAD));
  begin(CU_STREAM_PER_THREAD);
  void* const inside = take(mib, CU_STREAM_PER_THREAD);
  CUgraph const graph = end(CU_STREAM_PER_THREAD);
  void* const after = take(mib, CU_STREAM_PER_THREAD);
  EXPECT_NE(after, inside) << "the graph has it";
  give(after);
  EXPECT_EQ(take(mib, CU_STREAM_PER_THREAD), after) << "its stream may reuse it at once";
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_P(AskedInACapture, TheNextRequestOfItsStreamEndsIt) {
  open({{"limit", "1GiB"}});
  CUstream const a = stream();
  CUstream const b = stream();
  void* const p = take(512 * mib, a);
  CUstream const s = stream_before_capture();
  begin(s);
  give(take(mib, s));
  CUgraph const graph = end(s);
  give(take(mib, s));  // by which gpumem learns of the end
  give(p);
  give(take(600 * mib, b));  // only in the place of what `a` freed
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}
// PyTorch's graph pools: a region is opened in a capture, and asked in the next one and outside of captures.
TEST_P(AskedInACapture, ARegionServesItsStreamWithinAndWithout) {
  open();
  const auto from = [&](std::uint64_t region, CUstream s) {
    const auto got = allocator_->try_allocate({.bytes = mib, .stream = {s}, .device = 0, .region = region});
    EXPECT_TRUE(got.ok()) << got.why().message();
    return got ? *got : nullptr;
  };
  CUstream const s = stream_before_capture();
  begin(s);
  const std::uint64_t within = *allocator_->open_region(0, {s});
  void* const first = from(within, s);
  ASSERT_NE(end(s), nullptr);
  void* const outside = from(within, s);
  const std::uint64_t without = *allocator_->open_region(0, {s});
  void* const second = from(without, s);
  for (int i = 0; i < 200; ++i) give(take(512, stream()));  // by which gpumem forgets streams
  begin(s);
  void* const third = from(without, s);
  void* const fourth = from(within, s);
  ASSERT_NE(end(s), nullptr);
  CUstream const other = stream();
  for (const std::uint64_t region : {within, without}) {
    EXPECT_FALSE(allocator_->try_allocate({.bytes = mib, .stream = {other}, .device = 0, .region = region}).ok());
  }
  for (void* const each : {first, outside, second, third, fourth}) {
    EXPECT_TRUE(allocator_->try_deallocate(each, {.stream = stream_ref{s}}).ok());
  }
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  CUstream const later = stream();
  ASSERT_EQ(later, s) << "the driver gives the handle again";
  for (const std::uint64_t region : {within, without}) {
    EXPECT_FALSE(allocator_->try_allocate({.bytes = mib, .stream = {later}, .device = 0, .region = region}).ok());
    EXPECT_TRUE(allocator_->close_region(0, region).ok());
  }
}
INSTANTIATE_TEST_SUITE_P(Streams, AskedInACapture, testing::Bool(),
                         [](const auto& i) { return std::string{i.param ? "known" : "new"}; });

// Streams that joined a capture end with it, and take none of the legacy stream's answers with them.
TEST_F(Captures, ACaptureOfTwoBlockingStreamsIsOverForBoth) {
  open({{"limit", "1GiB"}});
  const auto blocking = [] {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    return s;
  };
  CUstream const a = stream();
  CUstream const b = stream();
  std::vector<CUgraph> graphs;
  for (int i = 0; i < 2; ++i) {
    CUstream const first = blocking();
    CUstream const joined = blocking();
    void* const p = take(512 * mib, a);
    begin(first);
    give(take(mib, first));
    wait(joined, first);
    give(take(mib, joined));
    wait(first, joined);
    graphs.push_back(end(first));
    ASSERT_EQ(cuStreamDestroy(joined), CUDA_SUCCESS);
    give(p);
    EXPECT_TRUE(allocator_->captures_ended(0).ok());
    give(take(600 * mib, b));  // only in the place of what `a` freed
    static_cast<void>(cuCtxSynchronize());
    EXPECT_TRUE(allocator_->trim(0).ok());
  }
  for (CUgraph const graph : graphs) ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// A thread's own stream on each of two devices; the handle is the same.
class OwnStreams : public Reality, public testing::WithParamInterface<const char*> {};

TEST_P(OwnStreams, KeepTheirKeysInACapture) {
  open();
  const auto* const driver = *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
  const auto second = *open_cuda_device({.ordinal = 1, .driver = driver});
  std::array<device*, 2> both{device_.get(), second.get()};
  settings s;
  ASSERT_TRUE(s.set("stream_ids", GetParam()).ok());
  allocator_ = *allocator::open(both, s);
  CUcontext context_of_second = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_of_second, 1), CUDA_SUCCESS);
  const auto from = [&](int ordinal) {
    const auto got = allocator_->try_allocate({.bytes = mib, .stream = {CU_STREAM_PER_THREAD}, .device = ordinal});
    EXPECT_TRUE(got.ok()) << got.why().message();
    return got ? *got : nullptr;
  };
  give(from(0));
  const stream_ref own{CU_STREAM_PER_THREAD};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(allocator_->capture_begin(own).ok());
    begin(CU_STREAM_PER_THREAD);
    void* const inside = from(0);
    EXPECT_TRUE(allocator_->try_deallocate(from(1)).ok());
    void* const again = from(0);
    CUgraph const graph = end(CU_STREAM_PER_THREAD);
    const auto number = allocator_->capture_end(own);
    ASSERT_TRUE(number.ok()) << number.why().message();
    for (void* const each : {inside, again}) EXPECT_TRUE(allocator_->try_deallocate(each).ok());
    void* const after = from(0);
    EXPECT_NE(after, inside) << "the graph has it";
    EXPECT_NE(after, again) << "the graph has it";
    EXPECT_TRUE(allocator_->try_deallocate(after).ok());
    ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  }
  allocator_.reset();
}
INSTANTIATE_TEST_SUITE_P(Ids, OwnStreams, testing::Values("query", "notify"),
                         [](const auto& i) { return std::string{i.param}; });

// The destroyed stream blocked, and the one with its handle does not.
TEST_F(Captures, ACaptureIsNotEndedByWhatAnEarlierStreamWithTheHandleWas) {
  open({{"limit", "1GiB"}});
  CUstream const a = stream();
  CUstream const b = stream();
  CUstream first = nullptr;
  ASSERT_EQ(cuStreamCreate(&first, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  give(take(mib, first));
  ASSERT_EQ(cuStreamDestroy(first), CUDA_SUCCESS);
  CUstream const second = stream();
  ASSERT_EQ(second, first) << "the driver gives the handle again";
  void* const p = take(512 * mib, a);
  begin(second);
  give(take(mib, second));
  give(p);
  EXPECT_FALSE(allocator_->try_allocate({.bytes = 600 * mib, .stream = {b}}).ok())
      << "it would take an event on the context";
  ASSERT_NE(end(second), nullptr);
}

}  // namespace
}  // namespace gpumem::reality
