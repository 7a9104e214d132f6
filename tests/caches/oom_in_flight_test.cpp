/// A request times out while another thread's driver call may still bring memory. The report says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "bits.hpp"
#include "forwarding_device.hpp"
#include "gpumem/allocator.hpp"

namespace gpumem::caches {
namespace {

TEST(oom_in_flight, is_pending_work_and_not_a_limit_that_leaves_nothing) {
  sim_device card{{.capacity_bytes = gib}};
  forwarding_device slow{card};
  std::atomic<bool> inside{false};
  std::atomic<bool> over{false};
  slow.before_alloc = [&] {
    inside = true;
    while (!over) std::this_thread::yield();
  };
  device* const devices[]{&slow};
  settings with;
  with.policy = "hard_cap";
  with.limit = {.unit = byte_limit::kind::bytes, .bytes = 64 * mib};
  with.free_wait_ms = 1;
  auto memory = allocator::open(devices, with);
  ASSERT_TRUE(memory.ok()) << memory.why().message();
  std::thread grows{[&] { EXPECT_TRUE((*memory)->try_allocate({.bytes = mib}).ok()); }};
  while (!inside) std::this_thread::yield();
  oom_report report;
  EXPECT_EQ((*memory)->try_allocate({.bytes = mib}, &report).code(), errc::out_of_memory);
  over = true;
  grows.join();
  EXPECT_EQ(report.cause, oom_cause::pending_work);
  EXPECT_EQ(report.pending_on, "another thread's call of the driver");
  EXPECT_THAT(report.headline(), testing::Not(testing::HasSubstr("nothing free")));
  EXPECT_TRUE((*memory)->try_allocate({.bytes = mib}).ok());
}

}  // namespace
}  // namespace gpumem::caches
