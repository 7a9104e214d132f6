// The way from out of memory to the remedy, for programs of public reports: the recording, the cause, and every setting
// that `why` and `advise` name, with which the program then runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "temporary_folder.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

class Refused : public ::testing::Test {
 protected:
  /// Exit status of the words in a shell, in a folder of the test's own.
  [[nodiscard]] int shell(const std::string& words) const {
    const std::string command = "cd " + folder_ + " && env -i PATH=\"$PATH\" HOME=/ TMPDIR=" + folder_ +
                                " timeout -s KILL 300 " + words + " >out 2>err";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file{folder_ + "/" + name};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  /// The program on a simulated card, with the variables in front, each of them GPUMEM_<name>=<value>.
  [[nodiscard]] int simulate(const std::string& card, const std::string& program, const std::string& variables,
                             const std::string& options) const {
    return shell("env " + variables + " " GPUMEM_PROGRAM " simulate --quiet --context 0 --card " + card + " " +
                 options + " -- " GPUMEM_TEST_REFUSED " " + program);
  }
  /// The document that the command prints.
  [[nodiscard]] json said(const std::string& command, int exit_status) const {
    const int got = shell(GPUMEM_PROGRAM " " + command);
    EXPECT_EQ(got, exit_status) << content("err");
    return json::parse(content("out"), nullptr, false);
  }
  void expect_served(const std::string& card, const std::string& program, const std::string& variables) const {
    const std::size_t begin = variables.find('=') + 1;  // GPUMEM_POLICY comes first
    const std::string policy = variables.substr(begin, variables.find(' ') - begin);
    EXPECT_EQ(simulate(card, program, variables, "--policy " + policy), 0) << program << ": " << variables << "\n"
                                                                           << content("err");
  }
  /// Every setting that is named serves the program.
  void expect_remedies(const std::string& program, const std::string& card, const std::string& cause) const {
    ASSERT_NE(simulate(card, program, "", "--policy growth --trace run.csv"), 0) << "it is not refused";
    ASSERT_THAT(content("err"), HasSubstr("out of memory: "));
    ASSERT_EQ(shell(GPUMEM_PROGRAM " plan run.csv -o run.plan"), 0) << content("err");
    const json found = said("why run.csv --json -", 0);
    EXPECT_EQ(found["cause"], cause) << program;
    EXPECT_EQ(found["grows_for_ever"], false) << program;
    ASSERT_FALSE(found["served_by"].empty()) << program;
    for (const json& each : found["served_by"]) {
      EXPECT_EQ(each["more_memory"], false) << program;
      EXPECT_EQ(each["next_refusal_after_ops"], nullptr) << program;
      expect_served(card, program, each["set"]);
    }
    const json advised = said("advise run.csv --json", 0);
    EXPECT_EQ(advised["grows_for_ever"], false) << program;
    std::size_t tried = 0;
    for (const json& each : advised["results"]) {
      if (!each["fits"].get<bool>() || !each["same_as"].is_null() || ++tried > 3) continue;
      expect_served(card, program, each["set"]);
    }
    EXPECT_GT(tried, 0U) << program;
  }

  temporary_folder temporary_{"gpumem-refused-"};
  std::string folder_ = temporary_.path();
};

TEST_F(Refused, ScratchBlockThatIsWantedAgain) { expect_remedies("scratch", "7680MiB", "fragmentation"); }

TEST_F(Refused, LargeBlockAmongSmallOnes) { expect_remedies("large_among_small", "16GiB", "fragmentation"); }

TEST_F(Refused, TwoBlocksAndOneOfBothSizes) { expect_remedies("two_then_one", "1450MiB", "fragmentation"); }

TEST_F(Refused, LayersReplacedByLargerOnes) { expect_remedies("replaced_layers", "12GiB", "fragmentation"); }

TEST_F(Refused, ProgramThatGrowsForEverIsNamedAsSuch) {
  ASSERT_NE(simulate("3GiB", "growing", "", "--policy growth --trace run.csv"), 0);
  const json found = said("why run.csv --json -", 3);
  EXPECT_EQ(found["grows_for_ever"], true);
  EXPECT_TRUE(found["served_by"].empty());
  const json advised = said("advise run.csv --json", 3);
  EXPECT_EQ(advised["grows_for_ever"], true);
  for (const json& row : advised["results"]) EXPECT_EQ(row["fits"], false) << row["policy"];
  EXPECT_EQ(shell(GPUMEM_PROGRAM " why run.csv"), 3);
  EXPECT_THAT(content("out"), HasSubstr("Live memory grew from the first operation to the last"));
  EXPECT_EQ(shell(GPUMEM_PROGRAM " advise run.csv"), 3);
  EXPECT_THAT(content("out"), HasSubstr("Live memory grew from the first operation to the last"));
}

}  // namespace
}  // namespace gpumem::cli
