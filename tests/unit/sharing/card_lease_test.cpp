// Leases between processes: one holder a place, freed when the holder ends in any way, kept across exec on request.
#include "card_lease.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace gpumem {
namespace {

std::string card_of_this_test(const char* name) { return "GPU-" + std::to_string(::getpid()) + "-" + name; }

bool free_now(const std::string& card) {
  const auto lease = card_lease::take(card, 0);
  EXPECT_TRUE(lease.ok()) << lease.why().message();
  return lease->held();
}

TEST(CardLease, HasOneHolderAPlaceACard) {
  const std::string card = card_of_this_test("one");
  auto first = card_lease::take(card, 0);
  ASSERT_TRUE(first.ok() && first->held());
  EXPECT_FALSE(free_now(card));
  EXPECT_TRUE(card_lease::take(card, 1)->held());
  EXPECT_TRUE(card_lease::take(card + "x", 0)->held());
  *first = card_lease{};
  EXPECT_TRUE(free_now(card));
}

TEST(CardLease, IsOneForTheNamesThatCudaAndNvmlHaveForAnInstance) {
  const auto held = card_lease::take("MIG-" + card_of_this_test("mig").substr(4), 0);
  ASSERT_TRUE(held.ok() && held->held());
  EXPECT_FALSE(free_now(card_of_this_test("mig")));
}

TEST(CardLease, ATooLongNameIsAnErrorAndNoLease) {
  EXPECT_EQ(card_lease::take("GPU-" + std::string(200, 'x'), 0).code(), errc::invalid_argument);
}

TEST(CardLease, DiesWithItsHolder) {
  const std::string card = card_of_this_test("killed");
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto lease = card_lease::take(card, 0);
    const char told = lease.ok() && lease->held() ? 'y' : 'n';
    static_cast<void>(!::write(pipe_ends[1], &told, 1));
    for (;;) ::pause();
  }
  char told = '?';
  ASSERT_EQ(::read(pipe_ends[0], &told, 1), 1);
  EXPECT_EQ(told, 'y');
  EXPECT_FALSE(free_now(card));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_TRUE(free_now(card));
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

/// Whether the lease is still held while the holder runs another program by exec.
bool outlives_exec(const std::string& card, bool keep) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    auto lease = card_lease::take(card, 0);
    if (keep && !lease->keep_across_exec()) std::_Exit(1);
    ::dup2(ready[1], STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-c", "echo; exec sleep 60", static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  char line = 0;
  EXPECT_EQ(::read(ready[0], &line, 1), 1);
  const bool held = !free_now(card);
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  return held;
}

TEST(CardLease, IsKeptAcrossExecOnlyOnRequest) {
  EXPECT_TRUE(outlives_exec(card_of_this_test("exec"), true));
  EXPECT_TRUE(free_now(card_of_this_test("exec")));
  EXPECT_FALSE(outlives_exec(card_of_this_test("closed"), false));
}

}  // namespace
}  // namespace gpumem
