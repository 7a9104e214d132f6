// Real memory at simulated addresses: writable, private to its segment, and kept when pages are mapped elsewhere.
#include <gtest/gtest.h>

#include <cstring>

#include "gpumem/sim_device.hpp"
#include "page.hpp"

namespace gpumem {
namespace {

unsigned char* bytes_at(address at) { return reinterpret_cast<unsigned char*>(static_cast<std::uintptr_t>(at)); }

sim_device device_with_memory() { return sim_device{{.capacity_bytes = 64 * page, .host_memory = true}}; }

TEST(HostMemory, SegmentsCanBeWrittenAndBeginAsZeros) {
  sim_device d{{.capacity_bytes = 64 * page, .host_memory = true}};
  const address a = *d.alloc(4 * page);
  const address b = *d.alloc(page);
  EXPECT_EQ(bytes_at(a)[4 * page - 1], 0);
  std::memset(bytes_at(a), 7, 4 * page);
  std::memset(bytes_at(b), 9, page);
  EXPECT_EQ(bytes_at(a)[page], 7);
  ASSERT_TRUE(d.free(a).ok());
  const address again = *d.alloc(4 * page);
  EXPECT_EQ(again, a);
  EXPECT_EQ(bytes_at(again)[0], 0) << "what a freed segment held is gone";
  EXPECT_EQ(bytes_at(b)[0], 9);
}

TEST(HostMemory, PinnedMemoryOfAnySize) {
  sim_device d{{.capacity_bytes = 64 * page, .host_memory = true}};
  const address a = *d.alloc_host(12'345);
  std::memset(bytes_at(a), 3, 12'345);
  EXPECT_TRUE(d.free_host(a).ok());
}

TEST(HostMemory, PagesKeepTheirContentsWhereverTheyAreMapped) {
  sim_device d{{.capacity_bytes = 64 * page, .host_memory = true}};
  const address range = *d.reserve(8 * page);
  const page_run run = *d.create(2 * page);
  ASSERT_TRUE(d.map(range, 2 * page, run).ok());
  ASSERT_TRUE(d.set_access(range, 2 * page).ok());
  std::memset(bytes_at(range), 5, 2 * page);
  ASSERT_TRUE(d.unmap(range, 2 * page).ok());
  ASSERT_TRUE(d.map(range + 4 * page, 2 * page, run).ok());
  ASSERT_TRUE(d.set_access(range + 4 * page, 2 * page).ok());
  EXPECT_EQ(bytes_at(range + 4 * page)[2 * page - 1], 5);
  ASSERT_TRUE(d.destroy(run).ok());
  EXPECT_EQ(bytes_at(range + 4 * page)[0], 5) << "a mapping holds the pages";
  ASSERT_TRUE(d.unmap(range + 4 * page, 2 * page).ok());
  const page_run fresh = *d.create(2 * page);
  ASSERT_TRUE(d.map(range, 2 * page, fresh).ok());
  ASSERT_TRUE(d.set_access(range, 2 * page).ok());
  EXPECT_EQ(bytes_at(range)[0], 0) << "new pages are zeros";
}

TEST(HostMemoryDeathTest, AUseAfterFreeFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        sim_device d = device_with_memory();
        const address a = *d.alloc(page);
        static_cast<void>(d.free(a));
        *static_cast<volatile unsigned char*>(bytes_at(a)) = 1;
      },
      "");
}

TEST(HostMemory, AddressesEndWithTheRange) {
  sim_device d{{.capacity_bytes = 4 * page, .host_memory = true}};
  EXPECT_TRUE(d.reserve(8 * page).ok());
  EXPECT_EQ(d.reserve(std::uint64_t{1} << 40).code(), errc::out_of_memory);
}

}  // namespace
}  // namespace gpumem
