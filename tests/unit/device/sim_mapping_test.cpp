// Address ranges, page runs and mappings: the rules of the driver's virtual memory calls.
#include <gtest/gtest.h>

#include "gpumem/sim_device.hpp"
#include "page.hpp"

namespace gpumem {
namespace {

class SimMapping : public ::testing::Test {
 protected:
  sim_device device{{.capacity_bytes = 64 * mib}};
  address range = *device.reserve(32 * mib);

  page_run run_of(std::uint64_t bytes) { return *device.create(bytes); }
};

TEST_F(SimMapping, OnlyCreateTakesPhysicalMemory) {
  EXPECT_EQ(device.used_bytes(), 0U);
  const page_run run = run_of(4 * mib);
  EXPECT_EQ(device.used_bytes(), 4 * mib);
  EXPECT_TRUE(device.map(range, 4 * mib, run));
  EXPECT_TRUE(device.set_access(range, 4 * mib));
  EXPECT_EQ(device.used_bytes(), 4 * mib);
  EXPECT_EQ(device.live_mappings(), 2U);
  EXPECT_EQ(device.create(62 * mib).code(), errc::out_of_memory);
}

TEST_F(SimMapping, MemoryReturnsWhenDestroyedAndNowhereMapped) {
  const page_run run = run_of(2 * mib);
  ASSERT_TRUE(device.map(range, 2 * mib, run));
  ASSERT_TRUE(device.map(range + 8 * mib, 2 * mib, run));  // one run, mapped twice
  EXPECT_EQ(device.used_bytes(), 2 * mib);
  EXPECT_EQ(device.live_mappings(), 2U);
  EXPECT_TRUE(device.destroy(run));
  EXPECT_EQ(device.used_bytes(), 2 * mib);
  EXPECT_TRUE(device.unmap(range, 2 * mib));
  EXPECT_EQ(device.used_bytes(), 2 * mib);
  EXPECT_TRUE(device.unmap(range + 8 * mib, 2 * mib));
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(device.live_mappings(), 0U);
}

TEST_F(SimMapping, UnmappedRunCanBeMappedAgain) {
  const page_run run = run_of(2 * mib);
  ASSERT_TRUE(device.map(range, 2 * mib, run));
  ASSERT_TRUE(device.unmap(range, 2 * mib));
  EXPECT_TRUE(device.map(range + 2 * mib, 2 * mib, run));
}

TEST_F(SimMapping, SizesAreWholePages) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, mib, 3 * mib}) {
    EXPECT_EQ(device.reserve(bytes).code(), errc::invalid_argument) << bytes;
    EXPECT_EQ(device.create(bytes).code(), errc::invalid_argument) << bytes;
    EXPECT_EQ(device.map(range, bytes, run_of(page)).code(), errc::invalid_argument) << bytes;
    EXPECT_EQ(device.set_access(range, bytes).code(), errc::invalid_argument) << bytes;
    EXPECT_EQ(device.unmap(range, bytes).code(), errc::invalid_argument) << bytes;
    EXPECT_EQ(device.release_range(range, bytes).code(), errc::invalid_argument) << bytes;
  }
}

TEST_F(SimMapping, MapStaysWithinOneRange) {
  const address neighbour = *device.reserve(4 * mib);
  ASSERT_EQ(neighbour, range + 32 * mib);
  const page_run run = run_of(4 * mib);
  EXPECT_EQ(device.map(range - 4 * mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(range + 30 * mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(neighbour + 4 * mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(range + mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_TRUE(device.map(range + 28 * mib, 4 * mib, run));
}

TEST_F(SimMapping, MapTakesTheWholeRunAndNoMappedBytes) {
  const page_run run = run_of(4 * mib);
  EXPECT_EQ(device.map(range, 2 * mib, run).code(), errc::invalid_argument);
  ASSERT_TRUE(device.map(range + 4 * mib, 4 * mib, run));
  EXPECT_EQ(device.map(range + 2 * mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(range + 4 * mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(range + 6 * mib, 4 * mib, run).code(), errc::invalid_argument);
  EXPECT_TRUE(device.map(range, 4 * mib, run));
  EXPECT_TRUE(device.map(range + 8 * mib, 4 * mib, run));
  EXPECT_EQ(device.live_mappings(), 6U);
}

TEST_F(SimMapping, RunsThatAreGoneAreRefused) {
  const page_run run = run_of(page);
  EXPECT_EQ(device.destroy(page_run{}).code(), errc::invalid_argument);
  EXPECT_EQ(device.destroy(page_run{run.id + 1}).code(), errc::invalid_argument);
  ASSERT_TRUE(device.map(range, page, run));
  ASSERT_TRUE(device.destroy(run));
  EXPECT_EQ(device.destroy(run).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(range + page, page, run).code(), errc::invalid_argument);
}

TEST_F(SimMapping, SetAccessNeedsEveryByteMapped) {
  ASSERT_TRUE(device.map(range, page, run_of(page)));
  ASSERT_TRUE(device.map(range + 2 * page, 2 * page, run_of(2 * page)));
  EXPECT_EQ(device.set_access(range, 4 * page).code(), errc::invalid_argument);
  EXPECT_EQ(device.set_access(range + 2 * page, page).code(), errc::invalid_argument);  // half of a mapping
  EXPECT_EQ(device.set_access(range + page, page).code(), errc::invalid_argument);
  ASSERT_TRUE(device.map(range + page, page, run_of(page)));
  EXPECT_TRUE(device.set_access(range, 4 * page));
  EXPECT_TRUE(device.set_access(range, 4 * page));  // a repetition changes nothing
}

TEST_F(SimMapping, UnmapTakesWholeMappings) {
  ASSERT_TRUE(device.map(range, 2 * page, run_of(2 * page)));
  ASSERT_TRUE(device.map(range + 2 * page, page, run_of(page)));
  EXPECT_EQ(device.unmap(range, page).code(), errc::invalid_argument);
  EXPECT_EQ(device.unmap(range + page, page).code(), errc::invalid_argument);
  EXPECT_EQ(device.unmap(range, 4 * page).code(), errc::invalid_argument);
  EXPECT_EQ(device.unmap(range, 4 * page).message(),
            "unmap of 8388608 bytes at 0x200000000000: expected whole mappings without a hole, found 6291456 bytes");
  EXPECT_EQ(device.live_mappings(), 3U);
  EXPECT_TRUE(device.unmap(range, 3 * page));
  EXPECT_EQ(device.live_mappings(), 0U);
}

TEST_F(SimMapping, ReleaseRangeNeedsTheWholeRangeUnmapped) {
  const page_run run = run_of(page);
  ASSERT_TRUE(device.map(range + 4 * page, page, run));
  EXPECT_EQ(device.release_range(range, 32 * mib).code(), errc::invalid_argument);
  ASSERT_TRUE(device.unmap(range + 4 * page, page));
  EXPECT_EQ(device.release_range(range, 30 * mib).code(), errc::invalid_argument);
  EXPECT_EQ(device.release_range(range + page, 30 * mib).code(), errc::invalid_argument);
  EXPECT_TRUE(device.release_range(range, 32 * mib));
  EXPECT_EQ(device.release_range(range, 32 * mib).code(), errc::invalid_argument);
  EXPECT_EQ(*device.reserve(2 * mib), range);
}

TEST_F(SimMapping, PlainSegmentsAndRangesDoNotMix) {
  const address plain = *device.alloc(4 * mib);
  EXPECT_EQ(device.free(range).code(), errc::invalid_argument);
  EXPECT_EQ(device.unmap(plain, 4 * mib).code(), errc::invalid_argument);
  EXPECT_EQ(device.map(plain, page, run_of(page)).code(), errc::invalid_argument);
  EXPECT_EQ(device.release_range(plain, 4 * mib).code(), errc::invalid_argument);
}

TEST(SimMappingSupport, DeviceWithoutPagesRefusesAll) {
  sim_device device{{.page_bytes = 0}};
  EXPECT_EQ(device.info().page_bytes, 0U);
  EXPECT_EQ(device.reserve(page).code(), errc::unsupported);
  EXPECT_EQ(device.release_range(0, page).code(), errc::unsupported);
  EXPECT_EQ(device.create(page).code(), errc::unsupported);
  EXPECT_EQ(device.destroy(page_run{1}).code(), errc::unsupported);
  EXPECT_EQ(device.map(0, page, page_run{1}).code(), errc::unsupported);
  EXPECT_EQ(device.set_access(0, page).code(), errc::unsupported);
  EXPECT_EQ(device.unmap(0, page).code(), errc::unsupported);
  EXPECT_TRUE(device.alloc(page));
}

TEST(SimMappingCeiling, SetAccessFailsBeyondIt) {
  constexpr std::uint64_t ceiling = 520'000;
  constexpr std::uint64_t run_pages = 5'200;
  sim_device device{{.costs = {}}};
  const page_run run = *device.create(run_pages * page);
  const page_run one = *device.create(page);
  const address range = *device.reserve((ceiling + 1) * page);
  for (std::uint64_t i = 0; i < ceiling / run_pages; ++i) {
    const address at = range + i * run_pages * page;
    ASSERT_TRUE(device.map(at, run_pages * page, run));
    ASSERT_TRUE(device.set_access(at, run_pages * page));
  }
  EXPECT_EQ(device.live_mappings(), ceiling);
  const address last = range + ceiling * page;
  EXPECT_TRUE(device.map(last, page, one));
  const status refused = device.set_access(last, page);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_NE(refused.message().find("520001 pages are mapped, the device holds 520000"), std::string::npos)
      << refused.message();
  EXPECT_TRUE(device.unmap(range, run_pages * page));
  EXPECT_TRUE(device.set_access(last, page));
}

}  // namespace
}  // namespace gpumem
