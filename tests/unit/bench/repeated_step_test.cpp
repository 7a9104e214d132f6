/// A trace replayed repeatedly, as a program repeats steps: thread caches learn its sizes from pass to pass, and must
/// not cost memory in any pass.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <tuple>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "replay_loop.hpp"

namespace gpumem::bench {
namespace {

struct outcome {
  double utilization = 0;
  std::uint64_t locks = 0;
  std::uint64_t ops = 0;
};

outcome played(const replay_loop& loop, const char* policy, bool thread_cache, int passes) {
  sim_config counted;
  counted.referee = false;
  sim_device on{counted};
  settings with;
  EXPECT_TRUE(with.set("policy", policy).ok());
  EXPECT_TRUE(with.set("stream_ids", "notify").ok());
  with.thread_cache = thread_cache;
  const std::array<device*, 1> devices{&on};
  result<std::unique_ptr<allocator>> opened = allocator::open(devices, with);
  EXPECT_TRUE(opened.ok()) << opened.why().message();
  allocator& over = **opened;
  std::vector<stream_ref> streams;
  for (std::size_t i = 0; i < loop.streams; ++i) streams.push_back(on.create_stream());
  std::vector<void*> blocks(loop.slots);
  outcome out;
  const auto free = [&](const loop_op& op) { EXPECT_TRUE(over.try_deallocate(blocks[op.slot]).ok()); };
  for (int pass = 0; pass < passes; ++pass) {
    for (const loop_op& op : loop.ops) {
      if (op.frees) {
        free(op);
        continue;
      }
      const result<void*> got = over.try_allocate({.bytes = op.bytes, .stream = streams[op.stream]});
      EXPECT_TRUE(got.ok());
      blocks[op.slot] = got.ok() ? *got : nullptr;
    }
    for (const loop_op& op : loop.live_at_end) free(op);
    out.ops += loop.ops.size() + loop.live_at_end.size();
  }
  const result<statistics> s = over.stats(0);
  EXPECT_TRUE(s.ok());
  out.utilization = static_cast<double>(s->peak_live_bytes) / static_cast<double>(s->peak_reserved_bytes);
  out.locks = s->locks;
  return out;
}

class repeated_step : public testing::TestWithParam<const char*> {};

TEST_P(repeated_step, costs_no_memory_with_thread_caches) {
  const result<trace> t = load_trace(fmt::format("bench/traces/{}.csv.gz", GetParam()));
  ASSERT_TRUE(t.ok()) << t.why().message();
  const replay_loop loop = loop_of(*t);
  // `caching` sometimes takes one more of its segments; a region that doubled would lose a third.
  // `growth` gives wholly idle segments back while it grows, which fewer are where caches keep blocks in use apart: its
  // measure is growth that gives none back.
  for (const auto& [policy, measure, loss] :
       {std::tuple{"growth", "growth:exchange_rate=0", 0.005}, std::tuple{"caching", "caching", 0.01}}) {
    constexpr int passes = 12;
    const outcome without = played(loop, measure, false, passes);
    const outcome with = played(loop, policy, true, passes);
    EXPECT_GE(with.utilization, without.utilization - loss) << policy;
    EXPECT_LT(with.locks, with.ops / 2) << policy << ": its caches serve most of what comes again";
  }
}

INSTANTIATE_TEST_SUITE_P(bundled_traces, repeated_step,
                         testing::Values("gpt2_varlen", "lstm", "moe", "serve", "unet_diffusion"),
                         [](const auto& each) { return std::string{each.param}; });

}  // namespace
}  // namespace gpumem::bench
