// A1, A2, A3: captures that nobody tells of.
#include <barrier>
#include <thread>

#include "world.hpp"

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

// Each of them may be the one that learns of the graphs first, or handle the same ones as another does.
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

// What a server does: it captures once, replays for ever, and works on other streams meanwhile. The capturing stream
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
  // The graph's own stays as it is.
  void* const other = take(16 * mib, b);
  EXPECT_NE(other, kept_);
  give(other);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph_, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, a), CUDA_SUCCESS);
}

// The program may destroy the stream when it has captured: it is never asked again.
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

// While one is under way, the same stream's next capture is another one, and what the first left is not its.
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

// A block of device 1 that a stream of device 0 uses is fenced by an event on device 0: not while that one captures.
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

// A stream that joined a capture by waiting for it captures, too, though nobody has told so of it: a fence on it would
// be an event of the capture, which the host may never ask.
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

// What others freed is looked through for a block, and a live graph's is not among it, though it would fit best: or
// else the request would wait for every stream there is.
class Reuse : public Reality, public testing::WithParamInterface<const char*> {};
TEST_P(Reuse, PassesOverTheMemoryOfALiveGraphAndWaitsForNobodyElse) {
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

// A stream that joined the capture frees a block of it: the capturing stream must not get it back, since nothing orders
// it behind what the other one does with it at each replay.
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

TEST_F(Captures, A3WhatTheCapturingStreamItselfFreesItHasBackAtOnce) {
  open();
  CUstream const s = stream();
  begin(s);
  void* const p = take(4 * mib, s);
  give(p, {.stream = stream_ref{s}});
  EXPECT_EQ(take(4 * mib, s), p);
  give(p);
  static_cast<void>(end(s));
}

}  // namespace
}  // namespace gpumem::reality
