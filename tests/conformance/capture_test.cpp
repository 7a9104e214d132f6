/// Captures: no call invalidates one, and its blocks stay with the graph.
#include <algorithm>

#include "setup.hpp"

namespace gpumem::conformance {
namespace {

constexpr std::size_t part = std::size_t{40} << 20;

class Capture : public program {
 protected:
  void begin(stream_ref s) {
    const status begun = allocator_->capture_begin(s);
    ASSERT_TRUE(begun.ok()) << begun.message();
    ASSERT_TRUE(device_->begin_capture(s).ok());
  }
  graph_ref end(stream_ref s) {
    const status unspoilt = device_->end_capture(s);
    EXPECT_TRUE(unspoilt.ok()) << unspoilt.message();
    const result<graph_ref> g = allocator_->capture_end(s);
    EXPECT_TRUE(g.ok()) << g.why().message();
    return *g;
  }
};

TEST_P(Capture, IsNotSpoiltByAnythingThatGoesOnMeanwhile) {
  const stream_ref s = device_->create_stream();
  const stream_ref other = device_->create_stream();
  void* const before = take(part, other);
  device_->use(other, 1'000'000, before, part);
  void* const used = take(part, other);
  ASSERT_TRUE(allocator_->record_use(used, s).ok());
  begin(s);
  void* const inside = take(part, s);
  give(before);
  give(used);
  std::vector<void*> more = fill(part, other);  // until out of memory, so that every step of the ladder runs
  EXPECT_EQ(try_take(8 * part, s), nullptr);
  static_cast<void>(allocator_->trim(0));
  static_cast<void>(allocator_->set_limit(0, std::uint64_t{300} << 20));
  give_all(more);
  give(inside);
  const graph_ref g = end(s);
  EXPECT_TRUE(allocator_->graph_release(g).ok());
}

TEST_P(Capture, ItsBlocksStayWithTheGraph) {
  const stream_ref s = device_->create_stream();
  begin(s);
  auto* const p = static_cast<char*>(take(part, s));
  give(p);
  const graph_ref g = end(s);
  const auto inside = [&](void* q) { return static_cast<char*>(q) < p + part && p < static_cast<char*>(q) + part; };
  for (const stream_ref asking : {s, device_->create_stream(), stream_ref{}}) {
    std::vector<void*> rest = fill(part, asking);
    EXPECT_TRUE(std::none_of(rest.begin(), rest.end(), inside));
    give_all(rest);
  }
  static_cast<void>(allocator_->trim(0));
  device_->use(s, 1'000'000, p, part);  // the graph runs

  ASSERT_TRUE(allocator_->graph_release(g).ok());
  std::vector<void*> rest = fill(part, device_->create_stream());
  // Its pages may have moved to other addresses.
  const bool all_is_live = stats().live_bytes + part > stats().limit_bytes;
  EXPECT_TRUE(all_is_live || std::any_of(rest.begin(), rest.end(), inside)) << "the graph is gone, its memory is not";
  give_all(rest);
}

TEST_P(Capture, ReusesItsOwnBlocks) {
  const stream_ref s = device_->create_stream();
  begin(s);
  void* const first = take(part, s);
  const std::uint64_t reserved = stats().reserved_bytes;
  give(first);
  void* const second = take(part, s);
  EXPECT_EQ(second, first);
  EXPECT_EQ(stats().reserved_bytes, reserved);
  give(second);
  static_cast<void>(end(s));
}

TEST_P(Capture, ABlockMayOutliveTheCaptureAndTheGraph) {
  const stream_ref s = device_->create_stream();
  begin(s);
  void* const p = take(part, s);
  const graph_ref g = end(s);
  EXPECT_EQ(stats().live_blocks, 1U);
  ASSERT_TRUE(allocator_->graph_release(g).ok());
  EXPECT_TRUE(allocator_->describe(p).ok());
  give(p);
  static_cast<void>(allocator_->trim(0));
  EXPECT_EQ(stats().live_blocks, 0U);
}

TEST_P(Capture, OutOfMemoryNamesTheWorkThatItMayNotWaitFor) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  const stream_ref s = device_->create_stream();
  const stream_ref other = device_->create_stream();
  const std::size_t nearly_all = std::size_t{400} << 20;
  void* const p = take(nearly_all, other);
  device_->use(other, 10'000'000, p, nearly_all);
  give(p);
  begin(s);
  oom_report report;
  EXPECT_EQ(try_take(nearly_all, s, 0, &report), nullptr);
  EXPECT_EQ(report.cause, oom_cause::pending_work) << report.headline();
  static_cast<void>(end(s));
  EXPECT_EQ(take(nearly_all, s), p) << "after the capture it may wait";
  give(p);
}

TEST_P(Capture, WrongCallsAreRefused) {
  const stream_ref s = device_->create_stream();
  EXPECT_EQ(allocator_->capture_end(s).code(), errc::invalid_argument);
  begin(s);
  EXPECT_EQ(allocator_->capture_begin(s).code(), errc::invalid_argument);
  EXPECT_EQ(allocator_->stream_release(s).code(), errc::invalid_argument);
  const graph_ref g = end(s);
  EXPECT_EQ(allocator_->capture_end(s).code(), errc::invalid_argument);
  EXPECT_TRUE(allocator_->graph_release(g).ok());
  EXPECT_EQ(allocator_->graph_release(g).code(), errc::invalid_argument);
  EXPECT_EQ(allocator_->graph_release({}).code(), errc::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Every, Capture, ::testing::ValuesIn(every_stream_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
