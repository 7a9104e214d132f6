// scripts/limit_check with a replacement for nvidia-smi that prints the contents of a file.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;

class LimitCheck : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    write("used", "500");
    write("bin/nvidia-smi",
          "#!/bin/sh\n"
          "case \"$*\" in\n"
          "  *--loop-ms=50*) while cat '" +
              path("used") +
              "'; do echo; sleep 0.02; done ;;\n"
              "  *) cat '" +
              path("used") +
              "' ;;\n"
              "esac\n",
          0755);
  }
  outcome check(const std::string& words, const std::string& folders = "") {
    const std::string command = "env -i PATH='" + (folders.empty() ? path("bin") + "':\"$PATH\"" : folders + "'") +
                                " GPUMEM_SHARED_FOLDER='" + path("shared") + "' '" GPUMEM_SCRIPTS "/limit_check' " +
                                words + " >'" + path("out") + "' 2>'" + path("err") + "' </dev/null";
    const int code = std::system(command.c_str());
    return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, content_of(path("out")), content_of(path("err"))};
  }
  /// A command during which the card's used memory rises by this much.
  std::string uses(const std::string& mib, const std::string& exit_status = "0") const {
    return "-- sh -c 'echo " + mib + " >" + path("used") + "; sleep 0.4; echo 500 >" + path("used") + "; exit " +
           exit_status + "'";
  }
};

TEST_F(LimitCheck, TheGreatestRiseIsTold) {
  const outcome got = check("--limit 1GiB --json " + path("figures.json") + " " + uses("1524"));
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("limit 1GiB, in use before 500 MiB, at most 1524 MiB in "));
  EXPECT_THAT(got.out, HasSubstr("rose by 1024 MiB"));
  EXPECT_THAT(
      content_of(path("figures.json")),
      HasSubstr("\"limit_bytes\":1073741824,\"before_mib\":500,\"greatest_mib\":1524,\"greatest_rise_mib\":1024,"));
}

TEST_F(LimitCheck, AboveTheLimitFails) {
  const outcome got = check("--limit 1GiB " + uses("1525"));
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_THAT(got.err, HasSubstr("above the limit"));
}

TEST_F(LimitCheck, TheCommandsStatusIsPassedOn) { EXPECT_EQ(check("--limit 1GiB " + uses("600", "7")).exit_status, 7); }

TEST_F(LimitCheck, BadWordsAreRefused) {
  EXPECT_EQ(check("--limit").exit_status, 2);
  EXPECT_EQ(check("--limit much -- true").exit_status, 2);
  EXPECT_EQ(check("--nope -- true").exit_status, 2);
  EXPECT_EQ(check("--limit 1GiB").exit_status, 2);
}

TEST_F(LimitCheck, WithoutNvidiaSmiItIsSkipped) {
  std::filesystem::remove(path("bin/nvidia-smi"));
  EXPECT_EQ(check("-- true", path("bin") + ":/usr/bin:/bin").exit_status, 77);
}

}  // namespace
}  // namespace gpumem::cli
