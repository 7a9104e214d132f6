// A1, A3: captures that nobody tells of.
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
