// A program that runs with more rights than its user: the user's variables must not name files that it writes. The test
// runs a set-uid copy of itself as another user, which takes root.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"
#include "trusted_path.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uid_t user = 65534;
constexpr int not_secure = 77;

/// The program of the copy.
TEST(SetUid, DISABLED_Program) {
  if (!runs_secure()) std::_Exit(not_secure);
  settings with;
  ASSERT_TRUE(with.apply(process_environment()).ok());
  sim_device card;
  device* const devices[] = {&card};
  auto opened = allocator::open(devices, with);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  void* const block = (*opened)->allocate({.bytes = 1000});
  (*opened)->deallocate(block);
}

std::string content(const fs::path& path) {
  std::ifstream in{path};
  return {std::istreambuf_iterator<char>{in}, {}};
}

TEST(SetUid, NoVariableOfTheUserNamesAFileThatIsWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root";
  std::string name = (fs::temp_directory_path() / "gpumem-set-uid-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  ::chmod(name.c_str(), 0755);
  fs::copy_file("/proc/self/exe", folder / "program");
  ::chmod((folder / "program").c_str(), 04755);
  fs::create_directory(folder / "secret");
  ::chmod((folder / "secret").c_str(), 0700);
  for (const char* victim : {"trace", "stats", "oom"}) std::ofstream{folder / "secret" / victim} << "of value";

  const pid_t child = ::fork();
  if (child == 0) {
    const auto set = [&](const char* variable, const char* file) {
      ::setenv(variable, (folder / "secret" / file).c_str(), 1);
    };
    set("GPUMEM_TRACE", "trace");
    set("GPUMEM_STATS", "stats");
    set("GPUMEM_OOM_FILE", "oom");
    set("GPUMEM_SHARED_FOLDER", "shared");
    set("GPUMEM_PLAN", "plan");
    ::setenv("GPUMEM_POLICY", "planned:record", 1);
    if (std::freopen((folder / "err").c_str(), "w", stderr) == nullptr) ::_exit(1);
    if (::setresgid(user, user, user) != 0 || ::setresuid(user, user, user) != 0) ::_exit(1);
    ::execl((folder / "program").c_str(), "program", "--gtest_also_run_disabled_tests",
            "--gtest_filter=SetUid.DISABLED_Program", static_cast<char*>(nullptr));
    ::_exit(1);
  }
  int ended = -1;
  ::waitpid(child, &ended, 0);
  const std::string err = content(folder / "err");
  const bool ignored = WIFEXITED(ended) && WEXITSTATUS(ended) == not_secure;
  if (!ignored) {
    EXPECT_EQ(ended, 0) << err;
    for (const char* victim : {"trace", "stats", "oom"}) EXPECT_EQ(content(folder / "secret" / victim), "of value");
    EXPECT_FALSE(fs::exists(folder / "secret" / "shared"));
    EXPECT_FALSE(fs::exists(folder / "secret" / "plan"));
    EXPECT_FALSE(fs::exists("gpumem.plan"));
    for (const char* variable : {"TRACE", "STATS", "OOM_FILE", "SHARED_FOLDER", "PLAN"}) {
      EXPECT_THAT(err, HasSubstr(std::string{"gpumem: GPUMEM_"} + variable + " is ignored: "));
    }
  }
  fs::remove_all(folder);
  if (ignored) GTEST_SKIP() << "the temporary folder's file system ignores set-uid";
}

}  // namespace
}  // namespace gpumem
