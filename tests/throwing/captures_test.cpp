/// Captures over two pools of a device, where each host allocation of their calls fails in turn: every pool captures,
/// or none does, and afterwards none believes that something captures.
#include "canned_program.hpp"

namespace gpumem::throwing {
namespace {

class TwoPools : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs a capture whose n-th host allocation of `begin` or `end` fails. False once it has no n-th one.
  void capture(std::uint64_t n, bool* met) {
    sim_device gpu;
    settings with;
    ASSERT_TRUE(with.set("pools", "a:1GiB,b:1GiB").ok());
    ASSERT_TRUE(with.set("stream_ids", GetParam()).ok());
    device* const devices[] = {&gpu};
    const auto all = *allocator::open(devices, with);
    const stream_ref captured = gpu.create_stream();
    const stream_ref other = gpu.create_stream();
    host_memory::fail_nth(n);
    const auto watched = [](const auto& call) {
      const host_memory::watched counted;
      return call();
    };
    const status begun = watched([&] { return all->capture_begin(captured); });
    result<graph_ref> left = status{errc::invalid_argument, "no capture has begun"};
    if (begun) left = watched([&] { return all->capture_end(captured); });
    *met = host_memory::failed();
    host_memory::fail_nth(0);
    if (begun && !left) left = all->capture_end(captured);
    const status& outcome = begun ? left.why() : begun;
    EXPECT_EQ(outcome.code(), begun ? errc::ok : errc::host_failure) << outcome.message();
    for (const int pool : {0, 1}) {
      all->deallocate(all->allocate(512 * mib, other, pool));
      EXPECT_GT(all->trim(pool)->returned_bytes, 0U) << "pool " << pool << " believes that something captures";
      EXPECT_TRUE(all->check(pool).ok()) << all->check(pool).message();
    }
    ASSERT_TRUE(all->capture_begin(captured).ok());
    const auto again = all->capture_end(captured);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(all->graph_release(*again).ok());
  }
};

TEST_P(TwoPools, CaptureBothOrNeither) {
  bool met = true;
  std::uint64_t n = 1;
  for (; met && !HasFailure(); ++n) {
    SCOPED_TRACE("the request for host memory that fails: " + std::to_string(n));
    capture(n, &met);
  }
  EXPECT_GT(n, 10U) << "a capture of two pools takes more than that";
}
INSTANTIATE_TEST_SUITE_P(Ids, TwoPools, ::testing::Values("query", "notify"),
                         [](const auto& i) { return std::string{i.param}; });

}  // namespace
}  // namespace gpumem::throwing
