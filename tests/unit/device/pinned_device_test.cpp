// Pinned host memory as a device of its own, over the simulated one.
#include "gpumem/pinned_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

struct PinnedDevice : ::testing::Test {
  std::uint64_t calls(device_call kind) { return gpu.calls()[static_cast<std::size_t>(kind)]; }

  sim_device gpu{{.capacity_bytes = 64 * mib}};
  pinned_device memory{gpu, 16 * mib};
};

TEST_F(PinnedDevice, TakesPinnedMemoryOfTheGpu) {
  const result<address> at = memory.alloc(4 * mib);
  ASSERT_TRUE(at);
  EXPECT_EQ(calls(device_call::alloc_host), 1U);
  EXPECT_EQ(calls(device_call::alloc), 0U);
  EXPECT_EQ(gpu.used_bytes(), 0U);
  EXPECT_EQ(memory.memory()->free_bytes, 12 * mib);
  EXPECT_TRUE(memory.free(*at));
  EXPECT_EQ(calls(device_call::free_host), 1U);
  EXPECT_EQ(memory.memory()->free_bytes, 16 * mib);
}

TEST_F(PinnedDevice, KeepsToItsCapacity) {
  const result<address> at = memory.alloc(12 * mib);
  ASSERT_TRUE(at);
  const result<address> more = memory.alloc(6 * mib);
  EXPECT_EQ(more.code(), errc::out_of_memory);
  EXPECT_THAT(more.why().message(), HasSubstr("12582912 of 16777216 are taken"));
  EXPECT_EQ(calls(device_call::alloc_host), 1U) << "the driver was not asked";
  EXPECT_TRUE(memory.free(*at));
  EXPECT_TRUE(memory.alloc(16 * mib));
}

TEST_F(PinnedDevice, AFailureOfTheDriverCostsNothing) {
  gpu.fail_nth(device_call::alloc_host, 1);
  EXPECT_EQ(memory.alloc(16 * mib).code(), errc::device_error);
  const result<address> at = memory.alloc(16 * mib);
  ASSERT_TRUE(at);
  gpu.fail_nth(device_call::free_host, 1);
  EXPECT_EQ(memory.free(*at).code(), errc::device_error);
  EXPECT_EQ(memory.memory()->free_bytes, 0U) << "it is still held";
  EXPECT_TRUE(memory.free(*at));
  EXPECT_EQ(memory.free(*at).code(), errc::unknown_pointer);
}

TEST_F(PinnedDevice, DescribesItself) {
  EXPECT_EQ(memory.info().name, "pinned host memory of simulated GPU");
  EXPECT_EQ(memory.info().total_bytes, 16 * mib);
  EXPECT_EQ(memory.info().page_bytes, 0U);
  EXPECT_EQ(memory.reserve(2 * mib).code(), errc::unsupported);
  const pinned_device by_default{gpu};
  EXPECT_GT(by_default.info().total_bytes, 0U);
  EXPECT_EQ(by_default.info().total_bytes % by_default.info().granularity_bytes, 0U);
}

TEST_F(PinnedDevice, TheHostIsAStreamThatIsNeverBehind) {
  const stream_ref host = pinned_device::host_stream();
  const result<fence> done = memory.record(host);
  ASSERT_TRUE(done);
  EXPECT_TRUE(*memory.query(*done));
  EXPECT_TRUE(memory.wait_host(*done));
  EXPECT_TRUE(memory.wait_stream(gpu.create_stream(), *done));
  memory.drop(*done);
  EXPECT_EQ(calls(device_call::record), 0U);
  EXPECT_EQ(*memory.capture_id(host), 0U);
  EXPECT_NE(*memory.stream_id(host), *memory.stream_id({}));
}

TEST_F(PinnedDevice, TheHostWaitsForTheFencesOfTheHostStream) {
  const stream_ref s = gpu.create_stream();
  gpu.enqueue(s, 1'000'000);
  const result<fence> behind = memory.record(s);
  ASSERT_TRUE(behind);
  EXPECT_FALSE(*memory.query(*behind));
  EXPECT_TRUE(memory.wait_stream(pinned_device::host_stream(), *behind));
  EXPECT_GE(gpu.now_ns(), 1'000'000U);
  EXPECT_TRUE(*memory.query(*behind));
  memory.drop(*behind);
}

}  // namespace
}  // namespace gpumem
