// --help, the manual pages and the completions list every option of every subcommand, from the same tables.
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* subcommands[] = {"run",     "devices", "top", "lease",    "plan", "advise", "simulate",
                                       "predict", "convert", "why", "exporter", "fit",  "dump"};

class Pages : public Program {
 protected:
  /// Every `--word` at the beginning of a line of a help text.
  std::set<std::string> options_in(const std::string& help) {
    std::set<std::string> out;
    std::istringstream lines{help};
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words{line};
      for (std::string word; words >> word;) {
        const bool option = word.starts_with("-");
        if (!option) break;
        std::istringstream names{word};
        for (std::string name; std::getline(names, name, ',');) {
          if (name.starts_with("--")) out.insert(name);
        }
      }
    }
    return out;
  }
};

TEST_F(Pages, EveryHelpHasOptionsDefaultsAndAnExample) {
  for (const char* command : subcommands) {
    const outcome got = run(std::string{command} + " --help");
    EXPECT_EQ(got.exit_status, 0) << command;
    EXPECT_EQ(got.err, "") << command;
    EXPECT_THAT(got.out, HasSubstr(std::string{"Example: gpumem "} + command)) << command;
    EXPECT_GE(options_in(got.out).size(), 2U) << got.out;
  }
  EXPECT_THAT(run("top --help").out, AnyOf(HasSubstr("S=1"), HasSubstr("S [1]"))) << "as CLI11 writes a default";
  EXPECT_THAT(run("plan --help").out, AnyOf(HasSubstr("S=50"), HasSubstr("S [50]")));
  EXPECT_THAT(run("run --help").out, HasSubstr("--wait"));
  EXPECT_THAT(run("--help").out, Not(HasSubstr("--pages"))) << "that is for the build";
}

TEST_F(Pages, TheBuildMadeManualPagesAndCompletionsWithTheSameOptions) {
  const std::string folder = GPUMEM_TEST_PAGES;
  const std::string bash = content_of(folder + "/gpumem.bash");
  const std::string zsh = content_of(folder + "/_gpumem");
  EXPECT_THAT(content_of(folder + "/gpumem.1"), HasSubstr(".SH COMMANDS"));
  for (const char* command : subcommands) {
    const std::string page = content_of(folder + "/gpumem-" + command + ".1");
    EXPECT_THAT(page, HasSubstr(std::string{".TH gpumem-"} + command + " 1"));
    EXPECT_THAT(page, HasSubstr("Example: gpumem ")) << command;
    EXPECT_THAT(bash, HasSubstr(std::string{"    "} + command + ") words='"));
    EXPECT_THAT(zsh, HasSubstr(std::string{"    "} + command + ")\n      _arguments"));
    for (const std::string& option : options_in(run(std::string{command} + " --help").out)) {
      std::string in_page;
      for (const char c : option) in_page += c == '-' ? "\\-" : std::string(1, c);
      EXPECT_THAT(page, HasSubstr(in_page)) << command;
      EXPECT_THAT(bash, HasSubstr(option)) << command;
      EXPECT_THAT(zsh, HasSubstr("'" + option + "[")) << command;
    }
  }
}

TEST_F(Pages, BashCompletesCommandsAndOptions) {
  if (std::system("command -v bash >/dev/null") != 0) GTEST_SKIP() << "needs bash";
  const auto complete = [&](const std::string& words, int at) {
    write("ask", "source '" GPUMEM_TEST_PAGES "/gpumem.bash'\nCOMP_WORDS=(" + words +
                     ")\nCOMP_CWORD=" + std::to_string(at) + "\n_gpumem\necho \"${COMPREPLY[*]}\"\n");
    static_cast<void>(std::system(("bash '" + path("ask") + "' >'" + path("out") + "'").c_str()));
    return content_of(path("out"));
  };
  EXPECT_EQ(complete("gpumem de", 1), "devices\n");
  EXPECT_EQ(complete("gpumem run --lim", 2), "--limit --limit-each\n");
  EXPECT_EQ(complete("gpumem top --on", 2), "--once\n");
  EXPECT_THAT(complete("gpumem run -- tru", 3), HasSubstr("true"));
}

TEST_F(Pages, ManualPagesAreWellFormed) {
  if (std::system("command -v groff >/dev/null") != 0) GTEST_SKIP() << "needs groff";
  for (const auto& file : std::filesystem::directory_iterator{GPUMEM_TEST_PAGES}) {
    if (file.path().extension() != ".1") continue;
    const std::string command =
        "groff -man -Tascii -ww '" + file.path().string() + "' >/dev/null 2>'" + path("err") + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(content_of(path("err")), "") << file.path();
  }
}

}  // namespace
}  // namespace gpumem::cli
