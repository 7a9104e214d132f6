/// Deprecated names of 0.1: programs that use them still compile and run.
#include <gtest/gtest.h>

#include <type_traits>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpumem {
namespace {

TEST(deprecated_names, release_is_free_args) {
  static_assert(std::is_same_v<release, free_args>);
  sim_device gpu;
  device* const devices[]{&gpu};
  const auto memory = allocator::open(devices, settings{});
  ASSERT_TRUE(memory.ok()) << memory.why().message();
  void* const block = (*memory)->allocate(1000);
  gpumem::release stated;
  stated.bytes = 999;
  EXPECT_EQ((*memory)->try_deallocate(block, stated).code(), errc::wrong_size);
  stated.bytes = 1000;
  EXPECT_TRUE((*memory)->try_deallocate(block, stated).ok());
}

TEST(deprecated_names, spoil_capture_is_invalidate_capture) {
  sim_device gpu;
  const stream_ref s = gpu.create_stream();
  ASSERT_TRUE(gpu.begin_capture(s).ok());
  EXPECT_FALSE(gpu.capture_spoilt(s));
  gpu.spoil_capture(s, "a call");
  EXPECT_TRUE(gpu.capture_spoilt(s));
  EXPECT_TRUE(gpu.capture_invalidated(s));
  EXPECT_EQ(gpu.end_capture(s).code(), errc::device_error);
}

}  // namespace
}  // namespace gpumem
