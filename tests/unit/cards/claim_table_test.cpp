// Rows of claims between processes: they end with their holder in any way, are kept across exec on request, and are
// refused where they cannot be trusted.
#include "claim_table.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "bits.hpp"
#include "card_claims.hpp"
#include "temporary_folder.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr off_t first_row = 128;

card_claim claim_on(const std::string& uuid, std::uint64_t bytes = gib) {
  return {.uuid = uuid, .bytes = bytes, .place = 3, .since_ns = 7, .pid = ::getpid(), .pid_space = own_pid_space()};
}

class ClaimTable : public ::testing::Test {
 protected:
  void add(held_claims& held, const std::vector<card_claim>& rows) const {
    const auto table = claim_table::open(folder_.path());
    ASSERT_TRUE(table.ok()) << table.why().message();
    const status replaced = table->replace(held, rows);
    EXPECT_TRUE(replaced.ok()) << replaced.message();
  }
  std::vector<card_claim> seen() const {
    const auto table = claim_table::open(folder_.path());
    EXPECT_TRUE(table.ok()) << table.why().message();
    return table.ok() ? table->others({}) : std::vector<card_claim>{};
  }
  /// The only file of claims.
  std::string file() const {
    for (const auto& entry : std::filesystem::directory_iterator{folder_.path()}) return entry.path().string();
    return "";
  }
  void damage(off_t offset, const std::string& bytes) const {
    const owned_fd opened{::open(file().c_str(), O_WRONLY)};
    ASSERT_EQ(::pwrite(opened.get(), bytes.data(), bytes.size(), offset), static_cast<ssize_t>(bytes.size()));
  }
  void expect_refused(const std::string& why) const {
    const auto table = claim_table::open(folder_.path());
    EXPECT_EQ(table.code(), errc::bad_setting);
    EXPECT_THAT(table.why().message(), HasSubstr(folder_.path()));
    EXPECT_THAT(table.why().message(), HasSubstr(why));
  }
  /// Whether a row still counts while its holder runs another program by exec.
  bool outlives_exec(bool keep) const {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    const pid_t holder = ::fork();
    if (holder == 0) {
      held_claims held;
      add(held, {claim_on("a")});
      if (keep && !held.keep_across_exec()) std::_Exit(1);
      ::dup2(ready[1], STDOUT_FILENO);
      ::execl("/bin/sh", "sh", "-c", "echo; exec sleep 60", static_cast<char*>(nullptr));
      std::_Exit(127);
    }
    char line = 0;
    EXPECT_EQ(::read(ready[0], &line, 1), 1);
    const bool held = !seen().empty();
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    return held;
  }

  temporary_folder folder_;
};

TEST_F(ClaimTable, ShowsARowAsWrittenUntilItsHolderLetsGo) {
  {
    held_claims held;
    add(held, {claim_on("a", 5), claim_on("b", 6)});
    ASSERT_THAT(seen(), SizeIs(2));
    const card_claim row = seen()[0];
    EXPECT_EQ(row.uuid, "a");
    EXPECT_EQ(row.bytes, 5U);
    EXPECT_EQ(row.place, 3U);
    EXPECT_EQ(row.since_ns, 7U);
    EXPECT_EQ(row.pid, ::getpid());
    EXPECT_EQ(row.pid_space, own_pid_space());
    EXPECT_THAT(claim_table::open(folder_.path())->others(held), IsEmpty()) << "its own";
    add(held, {claim_on("c", 7)});
    ASSERT_THAT(seen(), SizeIs(1));
    EXPECT_EQ(seen()[0].uuid, "c");
  }
  EXPECT_THAT(seen(), IsEmpty());
}

TEST_F(ClaimTable, ARowEndsWithItsHolder) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    held_claims held;
    add(held, {claim_on("a")});
    static_cast<void>(!::write(ends[1], "x", 1));
    for (;;) ::pause();
  }
  char told = '?';
  ASSERT_EQ(::read(ends[0], &told, 1), 1);
  EXPECT_THAT(seen(), SizeIs(1));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  EXPECT_THAT(seen(), IsEmpty());
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(ClaimTable, IsKeptAcrossExecOnlyOnRequest) {
  EXPECT_TRUE(outlives_exec(true));
  EXPECT_THAT(seen(), IsEmpty());
  EXPECT_FALSE(outlives_exec(false));
}

TEST_F(ClaimTable, EqualRowsOfTwoProgramsAreTwo) {
  held_claims first;
  held_claims second;
  add(first, {claim_on("a")});
  add(second, {claim_on("a")});
  EXPECT_THAT(seen(), SizeIs(2)) << "as of two containers with the same pid";
}

TEST_F(ClaimTable, AHundredStartersShareNoCardWhileAnotherIsIdle) {
  std::array<std::atomic<int>, 4> starters{};
  std::array<std::atomic<int>, 4> alone{};
  std::vector<held_claims> held(100);
  std::vector<std::thread> threads;
  for (held_claims& own : held) {
    threads.emplace_back([&] {
      const auto table = claim_table::open(folder_.path());
      ASSERT_TRUE(table.ok()) << table.why().message();
      std::vector<card_state> cards(4);
      for (std::size_t i = 0; i < cards.size(); ++i) {
        cards[i].uuid = std::to_string(i);
        cards[i].known = true;
      }
      auto claims = table->others({});
      for (card_claim& each : claims) each.pid_space = 0;  // other programs, though of this process
      count_claims(cards, claims, {}, 0, 0);
      const auto placed = place_on_cards(*parse_devices("auto"), cards, false);
      ASSERT_TRUE(placed.ok());
      const std::size_t card = placed->cards.front();
      ++starters.at(card);
      if (placed->places.front() == 0U) ++alone.at(card);
      card_claim row = claim_on(std::to_string(card));
      row.place = placed->places.front();
      EXPECT_TRUE(table->replace(own, std::array{row}).ok());
    });
  }
  for (std::thread& each : threads) each.join();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(starters.at(i), 25);
    EXPECT_EQ(alone.at(i), 1) << "the first had the card for itself";
  }
}

TEST_F(ClaimTable, ACutFileWithLiveRowsIsRefusedAndNotReadAsFree) {
  held_claims held;
  add(held, {claim_on("a")});
  for (const off_t size : {off_t{0}, off_t{100}, off_t{65535}, off_t{1} << 40}) {
    ASSERT_EQ(::truncate(file().c_str(), size), 0);
    expect_refused("has " + std::to_string(size) + " bytes");
  }
}

TEST_F(ClaimTable, DamageIsRefusedWhileAnythingCounts) {
  held_claims held;
  add(held, {claim_on("a")});
  damage(0, "x");
  expect_refused("another header");
  damage(0, "G");
  EXPECT_THAT(seen(), SizeIs(1));
  damage(first_row, std::string(64, 'x'));
  expect_refused("row 0 is damaged");
  damage(first_row, std::string("a\033[2J\0", 6));
  expect_refused("row 0 is damaged");
  held = held_claims{};
  EXPECT_THAT(seen(), IsEmpty()) << "nothing counts any more";
}

TEST_F(ClaimTable, AFileOfAnotherUserIsRefused) {
  held_claims held;
  ASSERT_EQ(::mkfifo(folder_.path("claims-1-1").c_str(), 0600), 0);
  expect_refused("is no regular file");
  ASSERT_EQ(::unlink(folder_.path("claims-1-1").c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", folder_.path("claims-1-1").c_str()), 0);
  expect_refused("is a symlink");
  ASSERT_EQ(::unlink(folder_.path("claims-1-1").c_str()), 0);
  ASSERT_EQ(::mkdir(folder_.path("claims-1-1").c_str(), 0700), 0);
  expect_refused("is no regular file");
  EXPECT_EQ(claim_table::open("/etc").code(), errc::bad_setting) << "open to others";
  EXPECT_EQ(claim_table::open("/no/such/folder").code(), errc::bad_setting);
}

TEST_F(ClaimTable, ARemovedFileIsReplaced) {
  held_claims held;
  add(held, {claim_on("a")});
  ASSERT_EQ(::unlink(file().c_str()), 0);
  add(held, {claim_on("b")});
  ASSERT_THAT(seen(), SizeIs(1));
  EXPECT_EQ(seen()[0].uuid, "b");
}

TEST_F(ClaimTable, AFileThatAnEndedUserNamespaceLeftIsRemoved) {
  const std::string left = folder_.path("claims-0-1");
  ASSERT_GE(owned_fd{::open(left.c_str(), O_WRONLY | O_CREAT, 0600)}.get(), 0);
  EXPECT_THAT(seen(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(ClaimTable, AUuidThatIsTooLongIsRefused) {
  held_claims held;
  const auto table = claim_table::open(folder_.path());
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->replace(held, std::array{claim_on(std::string(64, 'x'))}).code(), errc::invalid_argument);
  EXPECT_TRUE(held.empty());
}

}  // namespace
}  // namespace gpumem
