/// GPUMEM_OOM_ADVICE starts the tool once, without the program's settings, and the program goes on.
#include "oom_advice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

class OomAdvice : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "gpumem-advice-" + std::to_string(::getpid());
    std::filesystem::create_directory(folder_);
    // Replaces the tool: writes its arguments and environment, atomically.
    std::ofstream{folder_ + "/gpumem"} << "#!/bin/sh\n{ echo \"$@\"; env; } >\"$0.part\"\nmv \"$0.part\" \"$0.told\"\n";
    ::chmod((folder_ + "/gpumem").c_str(), 0755);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Runs in a child, whose exit status is the number of tools that it started.
  int run_out(bool advises) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("PATH", (folder_ + ":" + std::getenv("PATH")).c_str(), 1);
      ::setenv("GPUMEM_LIMIT", "1GiB", 1);
      ::setenv("LD_PRELOAD", "", 1);
      sim_device card{{.capacity_bytes = 64 * mib}};
      device* const devices[]{&card};
      settings with;
      with.trace_path = folder_ + "/run.csv";
      with.oom_advice = advises;
      auto memory = allocator::open(devices, with);
      for (int i = 0; i < 3; ++i) static_cast<void>((*memory)->try_allocate({.bytes = 80 * mib}));
      int started = 0;
      while (::waitpid(-1, nullptr, 0) > 0) ++started;
      ::_exit(started);
    }
    int ended = 0;
    EXPECT_EQ(::waitpid(child, &ended, 0), child);
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  }
  std::string folder_;
};

TEST_F(OomAdvice, StartsTheToolOnceOnTheRecording) {
  EXPECT_EQ(run_out(true), 1);
  std::ifstream file{folder_ + "/gpumem.told"};
  std::ostringstream told;
  told << file.rdbuf();
  EXPECT_THAT(told.str(), ::testing::StartsWith("why " + folder_ + "/run.csv\n"));
  EXPECT_THAT(told.str(), ::testing::Not(::testing::HasSubstr("GPUMEM_LIMIT")));
  EXPECT_THAT(told.str(), ::testing::Not(::testing::HasSubstr("LD_PRELOAD")));
}

TEST_F(OomAdvice, StartsNothingUnlessItIsAsked) {
  EXPECT_EQ(run_out(false), 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/gpumem.told"));
}

}  // namespace
}  // namespace gpumem
