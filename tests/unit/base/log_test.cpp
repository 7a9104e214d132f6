#include "log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace gpumem {
namespace {

/// Restores the sink that was there before the test.
class LogTest : public testing::Test {
 protected:
  void SetUp() override { before_ = set_log_sink(nullptr); }
  void TearDown() override { set_log_sink(before_); }

 private:
  log_sink before_;
};

TEST_F(LogTest, WritesWholePrefixedLinesToStderr) {
  testing::internal::CaptureStderr();
  log_line("limit reached");
  log_line("");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "gpumem: limit reached\ngpumem: \n");
}

TEST_F(LogTest, AStderrThatIsClosedFullOrNotReadLosesTheLineAndNothingElse) {
  const auto log_over = [](int stderr_fd) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (stderr_fd < 0) {
        ::close(STDERR_FILENO);
      } else {
        ::dup2(stderr_fd, STDERR_FILENO);
      }
      errno = ENOENT;
      log_line("lost");
      ::_exit(errno == ENOENT ? 0 : 1);
    }
    int ended = -1;
    ::waitpid(child, &ended, 0);
    return ended;
  };
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  ::close(ends[0]);
  EXPECT_EQ(log_over(ends[1]), 0) << "SIGPIPE";
  ::close(ends[1]);
  EXPECT_EQ(log_over(-1), 0);
  const int full = ::open("/dev/full", O_WRONLY);
  EXPECT_EQ(log_over(full), 0);
  ::close(full);
}

TEST_F(LogTest, ASigpipeOfTheProgramsOwnStaysPending) {
  const pid_t child = ::fork();
  if (child == 0) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::sigprocmask(SIG_BLOCK, &pipe, nullptr);
    ::raise(SIGPIPE);
    log_line("a line");
    sigset_t pending;
    ::sigpending(&pending);
    ::_exit(sigismember(&pending, SIGPIPE) == 1 ? 0 : 1);
  }
  int ended = -1;
  ::waitpid(child, &ended, 0);
  EXPECT_EQ(ended, 0);
}

TEST_F(LogTest, OnceLogsALineTheFirstTimeOnly) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  for (const char* line : {"once: a", "once: b", "once: a"}) log_once(line);
  log_line("once: a");
  EXPECT_EQ(lines, (std::vector<std::string>{"once: a", "once: b", "once: a"}));
}

TEST_F(LogTest, SinkGetsTheBareLineInsteadOfStderr) {
  std::vector<std::string> lines;
  set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  testing::internal::CaptureStderr();
  log_line("one");
  log_line("two");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two"}));
}

TEST_F(LogTest, ReplacingReturnsTheFormerSinkAndNullRestoresStderr) {
  int first = 0;
  EXPECT_FALSE(set_log_sink([&](std::string_view) { ++first; }));
  log_sink former = set_log_sink([](std::string_view) {});
  ASSERT_TRUE(former);
  former("x");
  EXPECT_EQ(first, 1);
  EXPECT_TRUE(set_log_sink(nullptr));
  testing::internal::CaptureStderr();
  log_line("again");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "gpumem: again\n");
  EXPECT_EQ(first, 1);
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  constexpr int threads = 4;
  constexpr int lines_each = 200;
  testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < threads; ++t) {
      writers.emplace_back([t] {
        for (int i = 0; i < lines_each; ++i) log_line(fmt::format("{}/{}", t, i));
      });
    }
  }
  std::set<std::string> expected;
  for (int t = 0; t < threads; ++t) {
    for (int i = 0; i < lines_each; ++i) expected.insert(fmt::format("gpumem: {}/{}", t, i));
  }
  const std::string text = testing::internal::GetCapturedStderr();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    ASSERT_NE(end, std::string::npos) << "the last line has no end";
    EXPECT_EQ(expected.erase(text.substr(begin, end - begin)), 1U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_TRUE(expected.empty()) << expected.size() << " lines are missing";
}

TEST_F(LogTest, SinkIsNeverEnteredTwiceAtOnce) {
  int count = 0;  // unsynchronised on purpose: the log's lock guards it
  set_log_sink([&](std::string_view) { ++count; });
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < 4; ++t) {
      writers.emplace_back([] {
        for (int i = 0; i < 1000; ++i) log_line("x");
      });
    }
  }
  set_log_sink(nullptr);
  EXPECT_EQ(count, 4000);
}

}  // namespace
}  // namespace gpumem
