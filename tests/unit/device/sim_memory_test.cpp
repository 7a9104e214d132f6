// Plain segments, pinned memory, addresses and free memory.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

sim_config small_device() { return {.capacity_bytes = 64 * mib}; }

std::uint64_t free_bytes(sim_device& device) { return device.memory()->free_bytes; }

TEST(SimInfo, HasTheConfiguredValues) {
  sim_device device{{.ordinal = 3, .name = "card", .capacity_bytes = 96 * mib, .granularity_bytes = 4 * mib}};
  EXPECT_EQ(device.info().ordinal, 3);
  EXPECT_EQ(device.info().name, "card");
  EXPECT_EQ(device.info().uuid, "GPU-00000000-0000-0000-0000-000000000003");
  EXPECT_EQ(device.info().total_bytes, 96 * mib);
  EXPECT_EQ(device.info().granularity_bytes, 4 * mib);
  EXPECT_EQ(device.info().page_bytes, 2 * mib);
  EXPECT_EQ(device.info().compute_major, 9);
  EXPECT_EQ(device.info().compute_minor, 0);
  EXPECT_TRUE(device.info().simulated);
}

TEST(SimInfo, DefaultIsAnEightyGibibyteCard) {
  sim_device device;
  EXPECT_EQ(device.info().total_bytes, std::uint64_t{80} << 30);
  EXPECT_EQ(device.memory()->total_bytes, std::uint64_t{80} << 30);
}

TEST(SimInfo, GranularityIsAMultipleOf512) {
  sim_device none{{.granularity_bytes = 0}};
  EXPECT_EQ(none.info().granularity_bytes, 512U);
  sim_device odd{{.granularity_bytes = 700}};
  EXPECT_EQ(odd.info().granularity_bytes, 1024U);
}

TEST(SimAlloc, CountsPhysicalMemory) {
  sim_device device{small_device()};
  const result<address> a = device.alloc(6 * mib);
  const result<address> b = device.alloc(4 * mib);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(device.used_bytes(), 10 * mib);
  EXPECT_EQ(free_bytes(device), 54 * mib);
  EXPECT_TRUE(device.free(*a));
  EXPECT_EQ(device.used_bytes(), 4 * mib);
  EXPECT_EQ(device.peak_used_bytes(), 10 * mib);
  EXPECT_EQ(free_bytes(device), 60 * mib);
}

TEST(SimAlloc, RefusesSizesThatAreNotMultiplesOfTheGranularity) {
  sim_device device{small_device()};
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, 2 * mib - 512, 3 * mib}) {
    EXPECT_EQ(device.alloc(bytes).code(), errc::invalid_argument) << bytes;
  }
  EXPECT_EQ(device.alloc(3 * mib).why().message(),
            "alloc of 3145728 bytes: expected a multiple of 2097152 and more than 0");
  EXPECT_EQ(device.used_bytes(), 0U);
}

TEST(SimAlloc, OutOfMemoryNamesRequestedAndFreeBytes) {
  sim_device device{small_device()};
  ASSERT_TRUE(device.alloc(60 * mib));
  device.set_foreign_bytes(2 * mib);
  const result<address> refused = device.alloc(4 * mib);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(refused.why().message(),
            "alloc of 4194304 bytes: 2097152 free of 67108864 (62914560 used here, 2097152 by other processes)");
  EXPECT_EQ(device.used_bytes(), 60 * mib);
  EXPECT_TRUE(device.alloc(2 * mib));
}

TEST(SimAlloc, HugeSizesAreRefusedNotWrapped) {
  sim_device device{{.capacity_bytes = std::numeric_limits<std::uint64_t>::max()}};
  EXPECT_EQ(device.alloc(std::uint64_t{1} << 63).code(), errc::out_of_memory);
  EXPECT_EQ(device.alloc(~(2 * mib - 1)).code(), errc::out_of_memory);
  EXPECT_EQ(device.alloc_host(std::numeric_limits<std::uint64_t>::max()).code(), errc::out_of_memory);
  EXPECT_EQ(device.used_bytes(), 0U);
}

TEST(SimAlloc, FreeRefusesUnknownAddresses) {
  sim_device device{small_device()};
  const address a = *device.alloc(4 * mib);
  EXPECT_EQ(device.free(a + 512).code(), errc::invalid_argument);
  EXPECT_EQ(device.free(0).code(), errc::invalid_argument);
  EXPECT_TRUE(device.free(a));
  EXPECT_EQ(device.free(a).code(), errc::invalid_argument);
  EXPECT_EQ(device.used_bytes(), 0U);
}

TEST(SimAddresses, SegmentsAreAlignedAndNeverTouch) {
  for (const std::uint64_t granularity : {std::uint64_t{512}, 2 * mib, 8 * mib}) {
    sim_device device{{.capacity_bytes = 1024 * mib, .granularity_bytes = granularity}};
    address previous_end = 0;
    for (int i = 0; i < 8; ++i) {
      const address at = *device.alloc(granularity * 2);
      EXPECT_EQ(at % (2 * mib), 0U);
      EXPECT_EQ(at % granularity, 0U);
      EXPECT_GE(at, previous_end + granularity);
      previous_end = at + granularity * 2;
    }
  }
}

TEST(SimAddresses, FreedAddressesAreReusedLowestFirst) {
  sim_device device{small_device()};
  std::vector<address> at;
  for (int i = 0; i < 5; ++i) at.push_back(*device.alloc(4 * mib));
  EXPECT_TRUE(device.free(at[3]));
  EXPECT_TRUE(device.free(at[1]));
  EXPECT_EQ(*device.alloc(4 * mib), at[1]);
  EXPECT_EQ(*device.alloc(2 * mib), at[3]);
  EXPECT_GT(*device.alloc(4 * mib), at[4]);
}

TEST(SimAddresses, AddressSpaceIsBounded) {
  sim_device device{{.capacity_bytes = 1024 * mib, .address_space_bytes = 16 * mib}};
  const address a = *device.alloc(8 * mib);
  const result<address> refused = device.alloc(8 * mib);  // it does not fit together with its gap
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(refused.why().message(), "alloc of 8388608 bytes: no such range is left in the address space");
  EXPECT_EQ(device.used_bytes(), 8 * mib);
  EXPECT_EQ(device.reserve(10 * mib).code(), errc::out_of_memory);
  EXPECT_TRUE(device.free(a));
  EXPECT_TRUE(device.alloc(16 * mib));
}

TEST(SimHostMemory, DoesNotCountAsDeviceMemory) {
  sim_device device{small_device()};
  const result<address> a = device.alloc_host(1000 * mib);
  ASSERT_TRUE(a);
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(free_bytes(device), 64 * mib);
  EXPECT_EQ(device.free(*a).code(), errc::invalid_argument);
  EXPECT_TRUE(device.free_host(*a));
  EXPECT_EQ(device.free_host(*a).code(), errc::invalid_argument);
  EXPECT_EQ(device.alloc_host(0).code(), errc::invalid_argument);
  EXPECT_EQ(device.free_host(*device.alloc(2 * mib)).code(), errc::invalid_argument);
}

TEST(SimForeign, OthersTakeMemoryBetweenMemoryAndAlloc) {
  sim_device device{small_device()};
  ASSERT_EQ(free_bytes(device), 64 * mib);
  device.set_foreign_bytes(60 * mib);
  EXPECT_EQ(device.alloc(64 * mib).code(), errc::out_of_memory);
  EXPECT_TRUE(device.alloc(4 * mib));
}

TEST(SimForeign, MoreThanThereIsLeavesNothingFree) {
  sim_device device{{.capacity_bytes = 64 * mib, .foreign_bytes = 1000 * mib}};
  EXPECT_EQ(free_bytes(device), 0U);
  EXPECT_EQ(device.alloc(2 * mib).code(), errc::out_of_memory);
  device.set_foreign_bytes(0);
  ASSERT_TRUE(device.alloc(32 * mib));
  device.set_foreign_bytes(40 * mib);  // together with this program's memory, more than the card has
  EXPECT_EQ(free_bytes(device), 0U);
}

}  // namespace
}  // namespace gpumem
