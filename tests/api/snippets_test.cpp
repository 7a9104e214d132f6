/// Every snippet of the documents compiles, and every command in them exists with its options. Whole programs are also
/// files of examples/, which other tests run (documents_test.cpp compares the two).
#include "snippets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "gpumem/settings.hpp"
#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

class snippets : public testing::Test {
 protected:
  snippets() : folder_{fs::temp_directory_path() / ("gpumem_snippets_" + std::to_string(::getpid()))} {
    fs::create_directories(folder_);
  }
  ~snippets() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  snippets(const snippets&) = delete;
  snippets& operator=(const snippets&) = delete;

  [[nodiscard]] fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream{folder_ / name} << text;
    return folder_ / name;
  }

  /// The exit status and all output.
  [[nodiscard]] std::pair<int, std::string> run(const std::string& command) const {
    const int code =
        std::system(("{ " + command + "\n} >'" + (folder_ / "said").string() + "' 2>&1 </dev/null").c_str());
    std::ostringstream said;
    said << std::ifstream{folder_ / "said"}.rdbuf();
    return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, said.str()};
  }

  fs::path folder_;
};

std::string place(const tree::snippet& of) { return of.document.string() + ":" + std::to_string(of.line); }

std::vector<tree::snippet> in(const std::string& language) {
  std::vector<tree::snippet> out;
  for (tree::snippet& each : tree::snippets()) {
    if (each.language == language) out.push_back(std::move(each));
  }
  return out;
}

/// A fragment as a file that compiles: its includes, the declarations it takes for granted, and the rest in a function
/// unless it is a program or a class. Compiler messages name the document and its line.
std::string as_file(const tree::snippet& of) {
  if (of.text.find("int main(") != std::string::npos)
    return "#line " + std::to_string(of.line) + " \"" + of.document.string() + "\"\n" + of.text;
  std::istringstream lines{of.text};
  std::string includes;
  std::string body;
  for (std::string line; std::getline(lines, line);) {
    const bool include = line.starts_with("#include");
    includes += include ? line + "\n" : "";
    body += (include ? "" : line) + "\n";
  }
  const bool declares = of.text.starts_with("class ") || of.text.starts_with("struct ");
  const std::string where = "#line " + std::to_string(of.line) + " \"" + of.document.string() + "\"\n";
  const std::string name = of.language == "c" ? "void fragment(void)" : "[[maybe_unused]] static void fragment()";
  return includes + "#include \"given.hpp\"\n" + (of.language == "c" ? "void fragment(void);\n" : "") +
         (declares ? where + body : name + " {\n" + where + body + "}\n");
}

/// Headers that a fragment needs and does not include, by the document that it is in.
std::string implied(const tree::snippet& of) {
  std::string out;
  for (const auto& [used, header] :
       {std::pair{"default_allocator", "default_allocator.hpp"}, std::pair{"gpumem::policy", "policy.hpp"},
        std::pair{"gpumem::settings", "settings.hpp"}, std::pair{"gpumem::allocator", "allocator.hpp"},
        std::pair{"gpumem::open_cuda_device", "cuda_device.hpp"}}) {
    if (of.language != "c" && of.text.find(used) != std::string::npos) {
      out += std::string{"#include \"gpumem/"} + header + "\"\n";
    }
  }
  return out;
}

constexpr const char* include_flags = " -I include -I tests/api/snippets" GPUMEM_TEST_CUDA_FLAGS;

TEST_F(snippets, in_cpp_compile) {
  const std::vector<tree::snippet> all = in("cpp");
  EXPECT_GE(all.size(), 8U);
  for (const tree::snippet& each : all) {
    if (each.text.find("rmm/") != std::string::npos || each.text.find("adapters/rmm.hpp") != std::string::npos) {
      continue;  // tests/unit/adapters has it, where RMM is installed
    }
    // nvcc compiles Thrust for a GPU; Thrust's own C++ device system has the same interface.
    std::string text = implied(each) + as_file(each);
    if (const std::size_t at = text.find("thrust::cuda::par"); at != std::string::npos) {
      text.replace(at, std::string{"thrust::cuda::par"}.size(), "thrust::cpp::par");
      text = "#include <thrust/system/cpp/execution_policy.h>\n" + text;
    }
    const fs::path file = write("fragment.cpp", text);
    const auto [code, said] = run(
        GPUMEM_TEST_CXX " -std=c++20 -DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP -fsyntax-only -Wall -Wno-unused" +
        std::string{include_flags} + " '" + file.string() + "'");
    EXPECT_EQ(code, 0) << place(each) << "\n" << said;
  }
}

TEST_F(snippets, in_c_compile) {
  const std::vector<tree::snippet> all = in("c");
  EXPECT_GE(all.size(), 1U);
  for (const tree::snippet& each : all) {
    const fs::path file = write("fragment.c", as_file(each));
    const auto [code, said] = run(GPUMEM_TEST_CC " -std=c11 -fsyntax-only -Wall -Wno-unused" +
                                  std::string{include_flags} + " '" + file.string() + "'");
    EXPECT_EQ(code, 0) << place(each) << "\n" << said;
  }
}

TEST_F(snippets, in_cuda_compile) {
  const std::vector<tree::snippet> all = in("cuda");
  EXPECT_GE(all.size(), 2U);
  if (std::string{GPUMEM_TEST_NVCC}.empty()) GTEST_SKIP() << "no nvcc";
  for (const tree::snippet& each : all) {
    const bool program = each.text.find("int main(") != std::string::npos;
    const std::string kernel =
        program ? "" : "__global__ void kernel(float*, size_t) {}\nstatic const int grid = 1, block = 1;\n";
    const fs::path file =
        write("fragment.cu", implied(each) + (program ? "" : "#include <cstddef>\n" + kernel) + as_file(each));
    const auto [code, said] = run(GPUMEM_TEST_NVCC " -std=c++20 -arch=sm_90 -cuda" + std::string{include_flags} + " '" +
                                  file.string() + "' -o '" + (folder_ / "out").string() + "'");
    EXPECT_EQ(code, 0) << place(each) << "\n" << said;
  }
}

TEST_F(snippets, in_python_compile) {
  const std::vector<tree::snippet> all = in("python");
  EXPECT_GE(all.size(), 2U);
  if (run("command -v python3").first != 0) GTEST_SKIP() << "no python3";
  for (const tree::snippet& each : all) {
    const fs::path file = write("fragment.py", each.text);
    const auto [code, said] =
        run("python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' '" + file.string() + "'");
    EXPECT_EQ(code, 0) << place(each) << "\n" << said;
  }
}

TEST_F(snippets, in_cmake_parse) {
  const std::vector<tree::snippet> all = in("cmake");
  EXPECT_GE(all.size(), 1U);
  for (const tree::snippet& each : all) {
    // Checks CMake commands in a project; a script with functions of their names parses the arguments.
    std::string text;
    for (const char* name : {"include", "find_package", "target_link_libraries", "add_executable", "add_subdirectory",
                             "gpumem_test", "project", "fetchcontent_declare", "fetchcontent_makeavailable"}) {
      text += std::string{"function("} + name + ")\nendfunction()\n";
    }
    const fs::path file = write("fragment.cmake", text + each.text);
    const auto [code, said] = run(GPUMEM_TEST_CMAKE " -P '" + file.string() + "'");
    EXPECT_EQ(code, 0) << place(each) << "\n" << said;
  }
}

/// Splits a line of a shell block into words; cuts off comments, and moves leading assignments to `set`.
struct command_line {
  std::vector<std::string> set;
  std::vector<std::string> words;
};

std::vector<command_line> commands_of(std::string text) {
  for (std::size_t at = text.find("\\\n"); at != std::string::npos; at = text.find("\\\n")) text.replace(at, 2, " ");
  std::vector<command_line> out;
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find(" #"));
    for (const char* between : {" && ", " | ", " & "}) {
      for (std::size_t at = line.find(between); at != std::string::npos; at = line.find(between)) {
        line.replace(at, std::string{between}.size(), "\n");
      }
    }
    std::istringstream parts{line};
    for (std::string part; std::getline(parts, part);) {
      command_line& made = out.emplace_back();
      std::istringstream words{part};
      for (std::string word; words >> word;) {
        if (made.words.empty() && (word == "export" || word == "env" || word == "nice" || word == "$")) continue;
        const bool assignment = made.words.empty() && word.find('=') != std::string::npos;
        (assignment ? made.set : made.words).push_back(word);
      }
    }
  }
  return out;
}

/// The --help text of a subcommand, read once.
class help_texts {
 public:
  template <typename runner>
  const std::string& of(const std::string& command, const runner& run) {
    const auto [found, made] = known_.try_emplace(command);
    if (made) found->second = run(command + " --help").second;
    return found->second;
  }

 private:
  std::map<std::string, std::string> known_;
};

TEST_F(snippets, of_the_shell_name_what_there_is) {
  std::set<std::string> variables;
  for (const option_row& row : option_table()) variables.emplace(row.variable);
  help_texts help;
  std::size_t checked = 0;
  const auto ask = [this](const std::string& command) { return run(command); };
  for (const tree::snippet& each : tree::snippets()) {
    if (!each.language.empty() && each.language != "sh") continue;
    if (each.language == "sh") {
      const auto [code, said] = run("bash -n '" + write("fragment.sh", each.text).string() + "'");
      EXPECT_EQ(code, 0) << place(each) << "\n" << said;
    }
    for (const command_line& line : commands_of(each.text)) {
      for (const std::string& assignment : line.set) {
        std::string name = assignment.substr(0, assignment.find('='));
        if (!name.starts_with("GPUMEM_")) continue;
        const std::size_t ordinal = name.find_last_not_of("0123456789");
        if (ordinal + 1 < name.size() && name[ordinal] == '_') name.resize(ordinal);
        EXPECT_TRUE(variables.contains(name)) << place(each) << ": " << assignment;
        ++checked;
      }
      if (line.words.empty()) continue;
      std::string program = line.words.front();
      if (program.starts_with("./scripts/") || program.starts_with("scripts/")) {
        EXPECT_TRUE(fs::exists(program)) << place(each) << ": " << program;
        ++checked;
        continue;
      }
      if (program != "gpumem" && program != "gpumem_bench") continue;
      std::string command = program == "gpumem" ? "'" GPUMEM_PROGRAM "'" : "'" GPUMEM_BENCH_PROGRAM "'";
      std::size_t next = 1;
      if (line.words.size() > 1 && line.words[1].find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos) {
        const std::string& general = help.of(command, ask);
        EXPECT_THAT(general, testing::HasSubstr(line.words[1])) << place(each) << ": no subcommand " << line.words[1];
        command += " " + line.words[next++];
      }
      for (; next < line.words.size() && line.words[next] != "--"; ++next) {
        const std::string& word = line.words[next];
        if (!word.starts_with("--")) continue;
        const std::string option = word.substr(0, word.find('='));
        const bool known = help.of(command, ask).find(option) != std::string::npos ||
                           help.of(command.substr(0, command.rfind('\'') + 1), ask).find(option) != std::string::npos;
        EXPECT_TRUE(known) << place(each) << ": " << command << " knows no " << option;
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 60U);
}

}  // namespace
}  // namespace gpumem
