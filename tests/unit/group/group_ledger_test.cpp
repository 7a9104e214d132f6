// The ledger of a group: exact between processes and threads, with killed members and damaged files.
#include "group_ledger.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "child_process.hpp"
#include "temporary_folder.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

result<std::shared_ptr<group_ledger>> join(const temporary_folder& in, std::optional<std::uint64_t> limit,
                                           const std::string& card = "GPU-1") {
  return group_ledger::join(in.path(), "lab", card, limit);
}

TEST(GroupLedger, GivesOutItsLimitToTheByteAndNoMore) {
  const temporary_folder t;
  const auto group = join(t, 100);
  ASSERT_TRUE(group.ok()) << group.why().message();
  group_ledger& g = **group;
  EXPECT_TRUE(g.reserve(60));
  EXPECT_FALSE(g.reserve(41));
  EXPECT_FALSE(g.reserve(UINT64_MAX));
  EXPECT_TRUE(g.reserve(40));
  EXPECT_EQ(g.left(), 0U);
  EXPECT_EQ(g.held(), 100U);
  g.give_back(60);
  EXPECT_EQ(g.left(), 60U);
  EXPECT_EQ(fs::status(t.path("group-lab-GPU-1")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(GroupLedger, AProcessIsOneMemberAndCardsAreApart) {
  const temporary_folder t;
  const auto one = join(t, 100);
  const auto again = join(t, 100);
  const auto other = join(t, 50, "GPU-2");
  ASSERT_TRUE(one.ok() && again.ok() && other.ok());
  EXPECT_EQ(*one, *again);
  EXPECT_TRUE((*other)->reserve(50));
  EXPECT_EQ((*one)->left(), 100U);
  EXPECT_THAT(join(t, 99).why().message(), HasSubstr("GPUMEM_GROUP_LIMIT=99 B"));
}

TEST(JobLedger, EntersMeasuredMemoryAndReservesTheRest) {
  const temporary_folder t;
  const auto joined = group_ledger::join(t.path(), "run-1-0", "GPU-1", 100, ledger_kind::job);
  ASSERT_TRUE(joined.ok()) << joined.why().message();
  group_ledger& job = **joined;
  job.enter(60);
  EXPECT_FALSE(job.reserve(41));
  EXPECT_TRUE(job.reserve(40));
  job.enter(50);
  EXPECT_EQ(job.held(), 150U) << "what is there is there";
  EXPECT_EQ(job.left(), 0U);
  EXPECT_FALSE(job.reserve(1));
  job.give_back(40);
  EXPECT_EQ(job.measured().bytes, 110U);
  job.leave(60);
  EXPECT_EQ(job.left(), 50U);
  EXPECT_EQ(job.measured().bytes, 50U);
  EXPECT_EQ(job.held_by_others(), 0U);
}

TEST(JobLedger, AGroupDoesNotEnterMeasuredMemory) {
  const temporary_folder t;
  const auto group = join(t, 100);
  ASSERT_TRUE(group.ok());
  (*group)->enter(60);
  (*group)->leave(60);
  EXPECT_EQ((*group)->held(), 0U);
  EXPECT_TRUE((*group)->reserve(100));
}

TEST(JobLedger, CountsTheMembersThatLiveAndIsRemovedAfterTheLast) {
  constexpr std::uint64_t unit = 64 << 10;
  const temporary_folder t;
  std::array<int, 2> ready{};
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  ASSERT_EQ(::pipe(end.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(end[1]);
    const auto joined = group_ledger::join(t.path(), "run-1-0", "GPU-1", 100 * unit, ledger_kind::job);
    if (joined) (*joined)->enter(70 * unit);
    char each = joined ? '1' : '0';
    static_cast<void>(!::write(ready[1], &each, 1));
    static_cast<void>(!::read(end[0], &each, 1));
    ::_exit(0);
  }
  char each = '0';
  ASSERT_EQ(::read(ready[0], &each, 1), 1);
  ASSERT_EQ(each, '1');
  {
    const auto joined = group_ledger::join(t.path(), "run-1-0", "GPU-1", 900 * unit, ledger_kind::job);
    ASSERT_TRUE(joined.ok()) << joined.why().message();
    EXPECT_EQ((*joined)->limit(), 100 * unit) << "the first member's";
    (*joined)->enter(40 * unit);
    const auto measured = (*joined)->measured();
    EXPECT_EQ(measured.bytes, 110 * unit);
    EXPECT_EQ(measured.members, 2U);
    EXPECT_EQ((*joined)->held_by_others(), 70 * unit);
    const std::vector<group_ledger::member> members = (*joined)->members();
    ASSERT_EQ(members.size(), 2U);
    EXPECT_EQ(members[0].pid, static_cast<std::uint64_t>(child));
    EXPECT_EQ(members[0].bytes, 70 * unit);
    EXPECT_EQ(members[1].pid, static_cast<std::uint64_t>(::getpid()));
  }
  group_ledger::remove_ended_jobs(t.path());
  EXPECT_TRUE(fs::exists(t.path("group-run-1-0-GPU-1"))) << "a member lives";
  ::close(end[1]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto group = join(t, 100);
  group_ledger::remove_ended_jobs(t.path());
  EXPECT_FALSE(fs::exists(t.path("group-run-1-0-GPU-1")));
  EXPECT_TRUE(fs::exists(t.path("group-lab-GPU-1")));
}

TEST(GroupLedger, WhenTheLastHasLeftTheLimitIsTheNextOnesToSay) {
  const temporary_folder t;
  {
    const auto first = join(t, 100);
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE((*first)->reserve(70));
  }
  const auto next = join(t, 200);
  ASSERT_TRUE(next.ok()) << next.why().message();
  EXPECT_EQ((*next)->left(), 200U) << "what the first held went with it";
}

TEST(GroupLedger, AMemberWithoutALimitTakesTheOthers) {
  const temporary_folder t;
  EXPECT_THAT(join(t, std::nullopt).why().message(), HasSubstr("needs GPUMEM_GROUP_LIMIT"));
  { ASSERT_TRUE(join(t, 100).ok()); }
  const auto second = join(t, std::nullopt);
  ASSERT_TRUE(second.ok()) << second.why().message();
  EXPECT_EQ((*second)->limit(), 100U);
}

TEST(GroupLedger, OthersMustAgreeOnTheLimit) {
  const temporary_folder t;
  const auto mine = join(t, 100);
  ASSERT_TRUE(mine.ok());
  EXPECT_EQ(exit_status_of(in_child([&] {
              const auto bad = join(t, 200);
              return bad.code() == errc::bad_setting && bad.why().message().find("run with 100 B") != std::string::npos
                         ? 0
                         : 1;
            })),
            0);
  EXPECT_EQ(exit_status_of(in_child([&] { return join(t, 100).ok() && join(t, std::nullopt).ok() ? 0 : 1; })), 0);
}

TEST(GroupLedger, AForkIsNoMemberUntilItJoins) {
  const temporary_folder t;
  const auto mine = join(t, 100);
  ASSERT_TRUE(mine.ok() && (*mine)->reserve(30));
  EXPECT_EQ(exit_status_of(in_child([&] {
              (*mine)->give_back(30);
              if ((*mine)->reserve(1)) return 1;
              const auto own = join(t, 100);
              if (!own || *own == *mine) return 2;
              return (*own)->left() == 70 && (*own)->reserve(70) ? 0 : 3;
            })),
            0);
  EXPECT_EQ((*mine)->left(), 70U) << "the child's share came back";
}

TEST(GroupLedger, AKilledMembersShareReturnsEvenWhileItsForkLives) {
  const temporary_folder t;
  const auto mine = join(t, 100);
  ASSERT_TRUE(mine.ok());
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t member = in_child([&] {
    const auto own = join(t, 100);
    if (!own || !(*own)->reserve(90)) return 1;
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      const pid_t self = ::getpid();
      static_cast<void>(!::write(ends[1], &self, sizeof self));
    }
    ::pause();
    return 0;
  });
  pid_t grandchild = 0;
  ASSERT_EQ(::read(ends[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  EXPECT_EQ((*mine)->left(), 10U);
  EXPECT_FALSE((*mine)->reserve(11));
  ::kill(member, SIGKILL);
  ::waitpid(member, nullptr, 0);
  EXPECT_TRUE((*mine)->reserve(100));
  ::kill(grandchild, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

// --- invalid files --------------------------------------------------------------------------------------------------

std::string damaged(const std::string& bytes, std::optional<std::uint64_t> limit = 100) {
  const temporary_folder t;
  std::ofstream{t.path("group-lab-GPU-1")} << bytes;
  fs::permissions(t.path("group-lab-GPU-1"), fs::perms::owner_read | fs::perms::owner_write);
  const auto got = join(t, limit);
  EXPECT_EQ(got.code(), errc::corrupt);
  EXPECT_EQ(got.why().message().find('\n'), std::string::npos);
  return got.why().message();
}

std::string sound_ledger() {
  const temporary_folder t;
  { EXPECT_TRUE(join(t, 100).ok()); }
  std::ifstream in{t.path("group-lab-GPU-1"), std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

TEST(GroupLedger, RefusesAFileThatIsNoLedger) {
  EXPECT_THAT(damaged("short"), HasSubstr("has 5 bytes; expected a ledger of group lab"));
  std::string other = sound_ledger();
  other[0] = 'x';
  EXPECT_THAT(damaged(other), HasSubstr("is none, or of another version"));
  EXPECT_THAT(damaged(sound_ledger() + "x"), HasSubstr(" bytes; expected"));
}

TEST(GroupLedger, AFileOfAKilledCreatorIsCreatedAgain) {
  const temporary_folder t;
  std::ofstream{t.path("group-lab-GPU-1")} << std::string(sound_ledger().size(), '\0');
  fs::permissions(t.path("group-lab-GPU-1"), fs::perms::owner_read | fs::perms::owner_write);
  const auto made = join(t, 100);
  ASSERT_TRUE(made.ok()) << made.why().message();
  EXPECT_EQ((*made)->left(), 100U);
}

// Two members begin at once: one takes the file's lock and creates the ledger; the second one waits and finds it.
TEST(GroupLedger, OpensNothingWhileAnotherProcessMakesIt) {
  const temporary_folder t;
  const std::string path = t.path("group-lab-GPU-1");
  result<owned_fd> maker = open_shared_file(path, true);
  ASSERT_TRUE(maker.ok());
  ASSERT_TRUE(lock_byte(maker->get(), 0)) << "the lock of the whole file";
  std::atomic<bool> joined{false};
  result<std::shared_ptr<group_ledger>> made{status{errc::invalid_argument, "not yet"}};
  std::thread joins{[&] {
    made = join(t, 100);
    joined = true;
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  EXPECT_FALSE(joined) << "it did not wait for the lock";
  EXPECT_EQ(fs::file_size(path), 0U) << "it made the ledger beside the one who has the lock";
  unlock_byte(maker->get(), 0);
  joins.join();
  ASSERT_TRUE(made.ok()) << made.why().message();
  EXPECT_EQ((*made)->left(), 100U);
}

TEST(GroupLedger, RefusesASymlinkAndAFileThatOthersMayRead) {
  const temporary_folder t;
  fs::create_symlink(t.path("elsewhere"), t.path("group-lab-GPU-1"));
  EXPECT_THAT(join(t, 100).why().message(), HasSubstr("is a symlink"));
  std::ofstream{t.path("group-lab-GPU-2")} << "";
  fs::permissions(t.path("group-lab-GPU-2"), fs::perms{0644});
  EXPECT_THAT(join(t, 100, "GPU-2").why().message(), HasSubstr("has mode 0644"));
}

TEST(GroupLedger, ADamagedFileRefusesFurtherReservations) {
  const temporary_folder t;
  const auto cut = join(t, 100);
  ASSERT_TRUE(cut.ok() && (*cut)->reserve(10));
  for (const std::uintmax_t size : {100U, 0U}) {
    fs::resize_file(t.path("group-lab-GPU-1"), size);
    EXPECT_FALSE((*cut)->reserve(1));
    EXPECT_EQ((*cut)->left(), 0U);
    EXPECT_EQ((*cut)->held(), 0U) << "nobody knows";
    EXPECT_EQ((*cut)->limit(), 100U) << "an out-of-memory report asks for it";
    (*cut)->give_back(5);
    EXPECT_EQ(fs::file_size(t.path("group-lab-GPU-1")), size) << "nothing is written into it";
  }
  const auto removed = join(t, 100, "GPU-2");
  ASSERT_TRUE(removed.ok());
  fs::remove(t.path("group-lab-GPU-2"));
  EXPECT_FALSE((*removed)->reserve(1)) << "others would begin a new one beside it";
}

TEST(GroupLedger, ACutLedgerIsNotMadeAgainWhileMembersRun) {
  const temporary_folder t;
  const auto member = join(t, 100);
  ASSERT_TRUE(member.ok() && (*member)->reserve(90));
  fs::resize_file(t.path("group-lab-GPU-1"), 0);
  const pid_t other = ::fork();
  if (other == 0) ::_exit(join(t, 100).code() == errc::corrupt ? 0 : 1);
  int ended = -1;
  ::waitpid(other, &ended, 0);
  EXPECT_EQ(ended, 0) << "the members' memory would be given out again";
}

TEST(GroupLedger, RowsThatExceedTheLimitAreDamage) {
  const temporary_folder t;
  const auto mine = join(t, 100);
  ASSERT_TRUE(mine.ok() && (*mine)->reserve(10));
  std::fstream file{t.path("group-lab-GPU-1"), std::ios::binary | std::ios::in | std::ios::out};
  file.seekp(32);  // the first row's bytes, those of this process
  const std::uint64_t wrong = 1000;
  file.write(reinterpret_cast<const char*>(&wrong), sizeof wrong);
  file.close();
  EXPECT_FALSE((*mine)->reserve(1));
  EXPECT_EQ((*mine)->left(), 0U);
}

// --- two processes, eight threads each, one killed half-way ----------------------------------------------------------

constexpr std::uint64_t gib = std::uint64_t{1} << 30;
constexpr std::uint64_t group_limit = 4 * gib;
constexpr std::uint64_t operations = 1'000'000;  // by both processes together

/// The memory that both really hold, counted independently of the ledger and read atomically: each process has one half
/// of the word `held`, in units of 16 bytes. Each adds after a grant and subtracts before a return, so the sum can only
/// be too small.
struct observed {
  std::atomic<std::uint64_t> held;
  std::atomic<std::uint64_t> done[2];
  std::atomic<std::uint64_t> granted;
  std::atomic<std::uint64_t> exceeded;
};
constexpr std::uint64_t unit = 16;
constexpr std::uint64_t in_half(std::size_t process, std::uint64_t bytes) { return bytes / unit << (32 * process); }
constexpr std::uint64_t sum_of(std::uint64_t held) { return ((held & UINT32_MAX) + (held >> 32)) * unit; }

int work(const temporary_folder& t, observed& seen, std::size_t me, std::uint64_t count) {
  const auto group = join(t, group_limit);
  if (!group) return 1;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      std::uint64_t random = 0x9E3779B97F4A7C15U * (thread + 8 * me + 1);
      std::vector<std::uint64_t> mine;
      for (std::uint64_t i = 0; i < count / 8; ++i) {
        random = random * 6364136223846793005U + 1442695040888963407U;
        const std::uint64_t bytes = (random >> 33) % (gib / 2 / unit) * unit + unit;
        if (mine.size() < 4 && (*group)->reserve(bytes)) {
          const std::uint64_t now = seen.held.fetch_add(in_half(me, bytes)) + in_half(me, bytes);
          if (sum_of(now) > group_limit) ++seen.exceeded;
          ++seen.granted;
          mine.push_back(bytes);
        } else if (!mine.empty()) {
          seen.held -= in_half(me, mine.back());
          (*group)->give_back(mine.back());
          mine.pop_back();
        }
        seen.done[me].fetch_add(1, std::memory_order_relaxed);
      }
      for (const std::uint64_t bytes : mine) {
        seen.held -= in_half(me, bytes);
        (*group)->give_back(bytes);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return 0;
}

TEST(GroupLedger, TwoProcessesOfEightThreadsNeverExceedItByAByteThoughOneIsKilled) {
  const temporary_folder t;
  void* const shared = ::mmap(nullptr, sizeof(observed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  observed& seen = *new (shared) observed{};
  const pid_t first = in_child([&] { return work(t, seen, 0, operations); });  // killed before it completes them
  const pid_t second = in_child([&] { return work(t, seen, 1, operations / 2); });
  while (seen.done[0] < operations / 4) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  ::kill(first, SIGSTOP);  // while stopped, its memory is constant; after its death others could take it at once
  ::waitpid(first, nullptr, WUNTRACED);
  seen.held &= ~std::uint64_t{UINT32_MAX};
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
  const pid_t third = in_child([&] { return work(t, seen, 0, operations - operations / 2 - seen.done[0]); });
  EXPECT_EQ(exit_status_of(second), 0);
  EXPECT_EQ(exit_status_of(third), 0);
  EXPECT_EQ(seen.exceeded, 0U);
  EXPECT_GE(seen.done[0] + seen.done[1], operations - 64);
  EXPECT_GT(seen.granted, operations / 10);
  const auto after = join(t, group_limit);
  ASSERT_TRUE(after.ok()) << after.why().message();
  EXPECT_EQ((*after)->left(), group_limit) << "the killed member's share has returned";
  EXPECT_TRUE((*after)->reserve(group_limit));
  ::munmap(shared, sizeof(observed));
}

// --- many members, killed at random --------------------------------------------------------------------------------

/// The memory that eight members really hold. Each has one byte of the word, so that one read gets all. A member adds
/// after a grant and subtracts before a return, so the sum can only be too small.
struct storm {
  static constexpr unsigned places = 8;
  static constexpr std::uint64_t limit = 200;
  std::atomic<std::uint64_t> held;
  std::atomic<std::uint64_t> granted;
  std::atomic<std::uint64_t> exceeded;
  std::atomic<std::uint64_t> refused_to_join;
};

void live_in(storm& seen, const temporary_folder& t, unsigned place, std::uint64_t random) {
  const auto group = join(t, storm::limit);
  if (!group) {
    ++seen.refused_to_join;
    return;
  }
  std::vector<std::uint64_t> mine;
  const auto give_one = [&] {
    seen.held -= mine.back() << (8 * place);
    (*group)->give_back(mine.back());
    mine.pop_back();
  };
  for (std::uint64_t left = random % 500; left > 0; --left) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t bytes = (random >> 33) % 60 + 1;
    if (mine.size() < 4 && (*group)->reserve(bytes)) {
      std::uint64_t all = seen.held.fetch_add(bytes << (8 * place)) + (bytes << (8 * place));
      std::uint64_t sum = 0;
      for (; all != 0; all >>= 8) sum += all & 0xff;
      if (sum > storm::limit) ++seen.exceeded;
      ++seen.granted;
      mine.push_back(bytes);
    } else if (!mine.empty()) {
      give_one();
    }
  }
  while (!mine.empty()) give_one();
}

// STORM_MEMBERS in the environment sets their number.
TEST(GroupLedger, MembersThatAreKilledAtRandomLeaveItExact) {
  const char* const asked = std::getenv("STORM_MEMBERS");
  const unsigned members = asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 200;
  const temporary_folder t;
  void* const shared = ::mmap(nullptr, sizeof(storm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  storm& seen = *new (shared) storm{};
  std::array<pid_t, storm::places> living{};
  unsigned killed = 0;
  std::uint64_t random = 1;
  for (unsigned member = 0; member < members + storm::places; ++member) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    const auto place = static_cast<unsigned>(random >> 33) % storm::places;
    if (living[place] != 0 && (random >> 40) % 5 < 2) {
      ::kill(living[place], SIGSTOP);  // while stopped, its memory is constant; after its death others could take it
      int changed = 0;
      ::waitpid(living[place], &changed, WUNTRACED);
      seen.held &= ~(std::uint64_t{0xff} << (8 * place));
      if (WIFSTOPPED(changed)) {
        ::kill(living[place], SIGKILL);
        ::waitpid(living[place], nullptr, 0);
        ++killed;
      }
    } else if (living[place] != 0) {
      EXPECT_EQ(exit_status_of(living[place]), 0);
    }
    living[place] = in_child([&, place] {
      live_in(seen, t, place, random >> 20);
      return 0;
    });
  }
  for (const pid_t each : living) {
    if (each != 0) {
      EXPECT_EQ(exit_status_of(each), 0);
    }
  }
  EXPECT_EQ(seen.exceeded, 0U);
  EXPECT_EQ(seen.refused_to_join, 0U);
  EXPECT_EQ(seen.held, 0U);
  const auto after = join(t, storm::limit);
  ASSERT_TRUE(after.ok()) << after.why().message();
  EXPECT_EQ((*after)->left(), storm::limit);
  RecordProperty("killed", static_cast<int>(killed));
  RecordProperty("granted", static_cast<int>(seen.granted));
  ::munmap(shared, sizeof(storm));
}

}  // namespace
}  // namespace gpumem
