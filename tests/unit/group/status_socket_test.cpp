// Asking a process for its memory: it answers one or several askers, stays silent when stopped, and leaves no files.
#include "status_socket.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "temporary_folder.hpp"

namespace gpumem {
namespace {

using namespace std::chrono_literals;

TEST(StatusSocket, AnswersEveryClient) {
  const temporary_folder t;
  std::atomic<int> asked{0};
  auto made =
      status_socket::open(t.path(), [&] { return "answer " + std::to_string(++asked) + std::string(9999, '.'); });
  ASSERT_TRUE(made.ok()) << made.why().message();
  for (int i = 1; i <= 3; ++i) {
    const auto all = ask_served(t.path(), 5s);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].pid, ::getpid());
    EXPECT_EQ(all[0].answer, "answer " + std::to_string(i) + std::string(9999, '.'));
  }
  made->reset();
  EXPECT_TRUE(ask_served(t.path(), 5s).empty());
  EXPECT_TRUE(std::filesystem::is_empty(t.path()));
  EXPECT_TRUE(ask_served(t.path("none"), 5s).empty());
}

/// A child that serves until it is killed; its own fork lives on.
pid_t served_child(const temporary_folder& t) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto made = status_socket::open(t.path(), [] { return std::string{"child"}; });
    const char told = made.ok() ? 'y' : 'n';
    static_cast<void>(!::write(ends[1], &told, 1));
    for (;;) ::pause();
  }
  char told = 0;
  EXPECT_EQ(::read(ends[0], &told, 1), 1);
  EXPECT_EQ(told, 'y');
  ::close(ends[0]);
  ::close(ends[1]);
  return child;
}

TEST(StatusSocket, WritesADumpToTheFileOfTheAsker) {
  const temporary_folder t;
  std::string asked;
  const auto made = status_socket::open(
      t.path(), [] { return std::string{"figures"}; }, nullptr,
      [&asked](std::string_view what, int descriptor) -> status {
        asked = what;
        if (what == "bad") return {errc::unsupported, "says no"};
        EXPECT_EQ(::write(descriptor, "text", 4), 4);
        return {};
      });
  ASSERT_TRUE(made.ok()) << made.why().message();
  const owned_fd file{::memfd_create("dump", MFD_CLOEXEC)};
  EXPECT_EQ(ask_to_dump(t.path(), ::getpid(), "trace", file.get(), 5s), std::string{dump_written});
  EXPECT_EQ(asked, "trace");
  std::array<char, 8> text{};
  EXPECT_EQ(::pread(file.get(), text.data(), text.size(), 0), 4);
  EXPECT_EQ(ask_to_dump(t.path(), ::getpid(), "bad", file.get(), 5s), "says no");
  EXPECT_EQ(ask_served(t.path(), 5s).at(0).answer, "figures");
  EXPECT_EQ(ask_to_dump(t.path(), 999'999'999, "trace", file.get(), 5s), std::nullopt);
}

TEST(StatusSocket, ThatKnowsNoDumpsAnswersWithFigures) {
  const temporary_folder t;
  const auto made = status_socket::open(
      t.path(), [] { return std::string{"figures"}; }, [] {});
  ASSERT_TRUE(made.ok());
  const owned_fd file{::memfd_create("dump", MFD_CLOEXEC)};
  EXPECT_EQ(ask_to_dump(t.path(), ::getpid(), "trace", file.get(), 5s), "figures");
}

TEST(StatusSocket, AStoppedProcessIsListedAndADeadOneSweptAway) {
  const temporary_folder t;
  const pid_t child = served_child(t);
  ASSERT_EQ(ask_served(t.path(), 5s).size(), 1U);
  EXPECT_EQ(ask_served(t.path(), 5s)[0].answer, "child");
  ::kill(child, SIGSTOP);
  ::waitpid(child, nullptr, WUNTRACED);
  const auto stopped = ask_served(t.path(), 50ms);
  ASSERT_EQ(stopped.size(), 1U);
  EXPECT_EQ(stopped[0].pid, child);
  EXPECT_EQ(stopped[0].answer, "");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(ask_served(t.path(), 5s).empty());
  EXPECT_TRUE(std::filesystem::is_empty(t.path()));
}

TEST(StatusSocket, TooLongAPathIsAnErrorAndNoMore) {
  const temporary_folder t;
  const auto made = status_socket::open(t.path(std::string(120, 'x')), [] { return std::string{}; });
  EXPECT_EQ(made.code(), errc::unsupported);
}

}  // namespace
}  // namespace gpumem
