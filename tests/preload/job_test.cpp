/// `gpumem run --limit` as a user types it: one limit for all processes of the command, in whichever context, and for
/// programs that a script starts with a list of libraries of its own.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>

#include "temporary_folder.hpp"

namespace gpumem::preload_test {
namespace {

using ::testing::HasSubstr;

constexpr int limit_mib = 1024;
constexpr int headroom_mib = 256;
constexpr int context_mib = 60;

class Job : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("GPUMEM_SHARED_FOLDER", (folder_ + "/shared").c_str(), 1);
    ::setenv("SIMCUDA_SHARED", ("job-test-" + std::to_string(::getpid())).c_str(), 1);
  }

  struct finished {
    int status = -1;
    std::string output;  ///< and errors
    [[nodiscard]] int taken_mib() const {
      std::smatch found;
      return std::regex_search(output, found, std::regex{"took ([0-9]+) MiB"}) ? std::stoi(found[1]) : -1;
    }
  };
  static finished run(const std::string& options, const std::string& command) {
    finished out;
    std::FILE* const from =
        ::popen(("'" GPUMEM_TEST_PROGRAM "' run " + options + " -- " + command + " 2>&1").c_str(), "re");
    if (from == nullptr) return out;
    char buffer[4096];
    for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, from)) != 0;) out.output.append(buffer, got);
    const int ended = ::pclose(from);
    out.status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
    return out;
  }
  static std::string program(const std::string& words) { return "'" GPUMEM_TEST_JOB_PROGRAM "' " + words; }

  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

TEST_F(Job, OneLimitHoldsForAllProcessesOfTheCommand) {
  const finished done = run("--limit 1GiB", program("primary 3"));
  EXPECT_EQ(done.status, 0) << done.output;
  EXPECT_GE(done.taken_mib(), 16) << done.output;
  EXPECT_LE(done.taken_mib(), limit_mib - 3 * context_mib) << done.output;
  EXPECT_LE(done.taken_mib() + context_mib, limit_mib - headroom_mib) << "one has its context in the ledger, too";
  for (const auto& entry : std::filesystem::directory_iterator{folder_ + "/shared"}) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("group-")) << "the ledger goes with the run";
  }
}

TEST_F(Job, TheLimitOfEachIsEachOnes) {
  ::unsetenv("SIMCUDA_SHARED");  // every process has a card of its own
  const finished done = run("--limit-each 1GiB", program("primary 3"));
  EXPECT_GT(done.taken_mib(), limit_mib) << done.output;
  EXPECT_THAT(run("--limit-each 1GiB --limit 1GiB", "true").output, HasSubstr("expected one or the other"));
}

TEST_F(Job, AContextOfTheProgramsOwnIsCounted) {
  for (const char* const option : {"--limit 1GiB", "--limit-each 1GiB"}) {
    const finished done = run(option, program("own 1"));
    EXPECT_EQ(done.status, 0) << done.output;
    EXPECT_GE(done.taken_mib(), 512) << done.output;
    EXPECT_LE(done.taken_mib(), limit_mib - headroom_mib) << done.output;
  }
}

TEST_F(Job, AScriptThatPreloadsSomethingElseKeepsTheLimit) {
  const finished done =
      run("--limit 1GiB", "sh -c \"LD_PRELOAD=libm.so.6; export LD_PRELOAD; " + program("primary 1") + "\"");
  EXPECT_EQ(done.status, 0) << done.output;
  EXPECT_GE(done.taken_mib(), 512) << done.output;
  EXPECT_LE(done.taken_mib() + context_mib, limit_mib - headroom_mib) << done.output;
}

TEST_F(Job, AScriptThatRemovesTheLibraryIsLeftAloneWithALine) {
  const finished done = run("--limit 1GiB", "sh -c 'unset LD_PRELOAD; env echo started'");
  EXPECT_EQ(done.status, 0) << done.output;
  EXPECT_EQ(
      done.output,
      "gpumem: a program is started without LD_PRELOAD, which this one removed: no limit holds for it\nstarted\n");
}

TEST_F(Job, AJobWithContextsBeyondTheLimitIsRefusedWithTheFigures) {
  ::setenv("SIMCUDA_CONTEXT_BYTES", "300MiB", 1);
  const finished done = run("--limit 1GiB", program("primary 3"));
  // Without NVML a context that is made at the same time may be counted by two processes.
  const std::regex line{
      "GPUMEM_JOB_LIMIT=1GiB for all processes of `gpumem run`: contexts and modules of [23] processes "
      "take [^;]+ and GPUMEM_HEADROOM is 256.00 MiB; expected more than "};
  const std::regex own{"its context and modules take [^;]+ and GPUMEM_HEADROOM is 256.00 MiB; expected more than "};
  EXPECT_TRUE(std::regex_search(done.output, line) || std::regex_search(done.output, own)) << done.output;
}

TEST_F(Job, WithoutASharedFolderTheRunIsRefused) {
  ::setenv("GPUMEM_SHARED_FOLDER", "/proc/none", 1);
  const finished done = run("--limit 1GiB", "true");
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.output, HasSubstr("GPUMEM_SHARED_FOLDER=/proc/none"));
  EXPECT_THAT(done.output, HasSubstr("--limit-each"));
  EXPECT_EQ(run("--limit-each 1GiB", "true").status, 0);
}

}  // namespace
}  // namespace gpumem::preload_test
