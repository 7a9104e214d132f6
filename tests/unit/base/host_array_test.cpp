#include "host_array.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace gpumem {
namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

/// Pages of the range that the system has given so far.
std::size_t resident_pages(const void* p, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((bytes + page - 1) / page);
  EXPECT_EQ(::mincore(const_cast<void*>(p), bytes, there.data()), 0);
  std::size_t count = 0;
  for (const unsigned char t : there) count += t & 1U;
  return count;
}

TEST(HostArray, HoldsNothingByDefault) {
  const host_array<int> none;
  EXPECT_EQ(none.size(), 0U);
  EXPECT_EQ(none.data(), nullptr);
}

// From the heap, from a mapping of small pages, from one of huge pages, and each side of where these change.
TEST(HostArray, IsZeroedAlignedAndWritableAtEverySize) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{100} * 8, 128 * kib - 8, 128 * kib, mib, 2 * mib - 8,
                                  2 * mib, 2 * mib + 8, 5 * mib + 4 * kib}) {
    const std::size_t count = bytes / 8;
    const host_array<std::uint64_t> a{count};
    ASSERT_EQ(a.size(), count);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0U) << bytes;
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(a[i], 0U) << "element " << i << " of " << count;
    for (std::size_t i = 0; i < count; ++i) a[i] = i + 1;
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(a[i], i + 1);
  }
}

TEST(HostArray, IsZeroedWhereMemoryIsUsedAgain) {
  for (int round = 0; round < 8; ++round) {
    for (const std::size_t count : {std::size_t{64}, 300 * kib / 8, 3 * mib / 8}) {
      const host_array<std::uint64_t> a{count};
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(a[i], 0U);
      for (std::size_t i = 0; i < count; ++i) a[i] = ~std::uint64_t{0};
    }
  }
}

TEST(HostArray, LargeOnesLieOnHugePagesBoundaries) {
  const host_array<char> a{3 * mib};
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % (2 * mib), 0U);
}

TEST(HostArray, TakesFromTheSystemOnlyWhatIsTouched) {
  constexpr std::size_t bytes = std::size_t{256} * mib;
  const host_array<char> a{bytes};
  EXPECT_EQ(resident_pages(a.data(), bytes), 0U);
  a[bytes / 2] = 1;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  EXPECT_GE(resident_pages(a.data(), bytes), 1U);
  EXPECT_LE(resident_pages(a.data(), bytes) * page, 2 * mib) << "at most one huge page";
}

TEST(HostArray, MovesWithoutCopying) {
  host_array<int> a{1000};
  a[7] = 3;
  const int* const where = a.data();
  host_array<int> b = std::move(a);
  EXPECT_EQ(b.data(), where);
  EXPECT_EQ(b[7], 3);
  b = host_array<int>{};
  EXPECT_EQ(b.size(), 0U);
}

TEST(HostArray, AnImpossibleSizeThrows) { EXPECT_THROW(take_host_pages(std::size_t{1} << 62), std::bad_alloc); }

}  // namespace
}  // namespace gpumem
