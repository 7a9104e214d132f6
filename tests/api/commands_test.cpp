/// Runs the commands of the documents: every line of a code block that begins with gpumem_bench, gpumem advise or
/// gpumem plan, in a temporary folder with a small trace under the documents' name for it. Also runs the
/// scripts/bench lines of bench/README.md, with that trace instead of all of them, and without those that need a GPU or
/// minutes. Workloads have a tenth of the operations that the documents name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "../unit/replay/pickle_writer.hpp"
#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

struct command {
  std::string document;
  std::string line;
};

std::vector<command> commands() {
  std::vector<command> out;
  for (const fs::path& file : tree::files("docs", {".md"})) {
    std::istringstream lines{tree::text(file)};
    bool code = false;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("```")) code = !code;
      const bool known = line.starts_with("gpumem_bench") || line.starts_with("gpumem advise run.") ||
                         line.starts_with("gpumem plan run.");
      if (code && known) out.push_back({file.filename().string(), line});
    }
  }
  return out;
}

/// The lines of bench/README.md that begin with ./scripts/bench, without their comments.
std::vector<command> bench_commands() {
  const std::string script = "./scripts/bench ";
  std::vector<command> out;
  std::istringstream lines{tree::text("bench/README.md")};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(script)) continue;
    line = line.substr(script.size(), line.find('#') - script.size());
    if (line.find("cuda:") != std::string::npos || line.starts_with("latency")) continue;
    if (line.starts_with("generate") || line.starts_with("sweep") || line.starts_with("merge")) continue;
    if (line.find("--baseline") != std::string::npos) continue;  // covered by tests/unit/bench/cli_test.cpp
    if (line.find_first_not_of(' ') == std::string::npos) line = "compare";
    if (line.starts_with("claims")) {
      line += " --only one-nth-each";
    } else if (line.find("--trace") == std::string::npos && line.find("--workload") == std::string::npos) {
      line += " --trace run.csv.gz";
    }
    out.push_back({"bench/README.md", "gpumem_bench " + line});
  }
  return out;
}

/// A temporary folder with run.csv.gz.
class place {
 public:
  place() : folder_{fs::temp_directory_path() / ("gpumem_commands_" + std::to_string(::getpid()))} {
    fs::create_directories(folder_);
    const std::string shorten =
        "gzip -dc bench/traces/serve.csv.gz | head -n 2001 | gzip >'" + folder_.string() + "/run.csv.gz'";
    if (std::system(shorten.c_str()) != 0) throw std::runtime_error{shorten + " failed"};
    std::ofstream{folder_ / "run.pickle", std::ios::binary} << bench::pickled::small_snapshot();
  }
  ~place() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  place(const place&) = delete;
  place& operator=(const place&) = delete;

  /// The exit status and stderr.
  [[nodiscard]] std::pair<int, std::string> run(const std::string& line) const {
    const std::size_t words = line.find(' ');
    const std::string program = line.substr(0, words) == "gpumem" ? GPUMEM_PROGRAM : GPUMEM_BENCH_PROGRAM;
    const std::string fewer = std::regex_replace(line, std::regex{"(ops=[0-9]+)0"}, "$1");
    const std::string shell = "cd '" + folder_.string() + "' && { env -i PATH=\"$PATH\" '" + program + "'" +
                              (words == std::string::npos ? "" : fewer.substr(words)) + "\n} >out 2>err </dev/null";
    const int code = std::system(shell.c_str());
    std::ostringstream err;
    err << std::ifstream{folder_ / "err"}.rdbuf();
    return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, err.str()};
  }
  [[nodiscard]] bool wrote(const std::string& name) const {
    return fs::exists(folder_ / name) && fs::file_size(folder_ / name) > 1000;
  }

 private:
  fs::path folder_;
};

/// The argument of --html.
std::string file_of(const std::string& line) {
  const std::size_t begin = line.find("--html") + 7;
  return line.substr(begin, line.find(' ', begin) - begin);
}

void expect_to_run(const std::vector<command>& all) {
  for (const command& each : all) {
    const bool html = each.line.find("--html") != std::string::npos;
#ifndef GPUMEM_TEST_HTML
    if (html) continue;  // a build without the chart library refuses --html
#endif
    const place here;
    const auto [exit_status, err] = here.run(each.line);
    EXPECT_EQ(exit_status, 0) << each.document << ": " << each.line << '\n' << err;
    if (html) {
      EXPECT_TRUE(here.wrote(file_of(each.line))) << each.line;
    }
  }
}

TEST(commands, of_the_documents_run) {
  const std::vector<command> all = commands();
  EXPECT_GE(all.size(), 15U);
  expect_to_run(all);
}

TEST(commands, of_the_bench_run) {
  const std::vector<command> all = bench_commands();
  EXPECT_GE(all.size(), 7U);
  expect_to_run(all);
}

}  // namespace
}  // namespace gpumem
