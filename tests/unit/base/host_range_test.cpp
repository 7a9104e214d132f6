#include "host_range.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace gpumem {
namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t gib = kib * kib * kib;

TEST(HostRange, GrowsWhereItStands) {
  host_range<std::uint64_t> r{std::size_t{1} << 26};
  EXPECT_EQ(r.size(), 0U);
  EXPECT_EQ(r.bytes(), 0U);
  r.grow();
  const std::uint64_t* const where = &r[0];
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(where) % (2 * kib * kib), 0U);
  for (int step = 1; step <= 80; ++step) {
    ASSERT_EQ(r.bytes(), static_cast<std::size_t>(step) * 64 * kib);
    ASSERT_EQ(r.size(), r.bytes() / 8);
    for (std::size_t i = r.size() - 8 * kib; i < r.size(); ++i) {
      ASSERT_EQ(r[i], 0U);
      r[i] = i;
    }
    r.grow();
    ASSERT_EQ(&r[0], where);
    ASSERT_EQ(r[r.size() - 8 * kib - 1], r.size() - 8 * kib - 1) << "what was there stays";
  }
}

TEST(HostRange, RefusesMoreThanWasReserved) {
  host_range<std::uint64_t> r{32 * kib};
  for (int step = 0; step < 4; ++step) r.grow();
  EXPECT_THROW(r.grow(), std::bad_alloc);
  EXPECT_EQ(r.size(), 32 * kib);
  r[32 * kib - 1] = 7;
  EXPECT_EQ(r[32 * kib - 1], 7U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take terabytes of addresses themselves
TEST(HostRange, AsksForHalfWhereAddressesAreLimited) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit most{gib, gib};
    if (::setrlimit(RLIMIT_AS, &most) != 0) ::_exit(2);
    host_range<std::uint64_t> r{gib};  // 8 GiB of addresses
    int steps = 0;
    try {
      for (;; ++steps) r.grow();
    } catch (const std::bad_alloc&) {
    }
    ::_exit(steps >= 1024 ? 0 : 1);  // at least an eighth of a GiB
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
}
#endif

}  // namespace
}  // namespace gpumem
