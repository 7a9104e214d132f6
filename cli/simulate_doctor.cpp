#include "simulate_doctor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "command_file.hpp"
#include "run.hpp"
#include "simulated_cuda.hpp"

namespace gpumem::cli {
namespace {

constexpr int something_missing = 1;

/// The command's first word where that is a Python, else the usual one.
command_file python_of(const std::vector<std::string>& command) {
  if (!command.empty() && std::filesystem::path{command.front()}.filename().string().starts_with("python")) {
    return find_command(command.front());
  }
  command_file usual = find_command("python3");
  return usual.exit_status == 0 ? usual : find_command("python");
}

/// Its lines follow those that this process has printed.
int run_doctor(const std::string& python, const std::string& folder, const std::string& versions) {
  std::fflush(stdout);
  const std::string script = folder + "/python/gpumem_doctor.py";
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(python.c_str(), python.c_str(), script.c_str(), versions.c_str(), static_cast<char*>(nullptr));
    ::_exit(not_executable);
  }
  int waited = 0;
  if (child < 0 || ::waitpid(child, &waited, 0) != child) return something_missing;
  return WIFEXITED(waited) ? WEXITSTATUS(waited) : something_missing;
}

}  // namespace

int diagnose(const std::vector<std::string>& command) {
  const result<std::string> folder = find_simulated_driver();
  if (!folder) {
    fmt::print("MISSING: {}\n", folder.why().message());
    return something_missing;
  }
  int status = 0;
  const std::vector<std::string> missing = missing_files(*folder);
  if (!missing.empty()) {
    status = something_missing;
    fmt::print("MISSING: {} of the simulated CUDA in {}: {}\n", fmt::join(missing, ", "), *folder, how_to_complete());
  }
  if (folder->find_first_of(" \t:") != std::string::npos) {
    status = something_missing;
    fmt::print("MISSING: a folder without a space or ':', which LD_PRELOAD cannot hold: move {}\n", *folder);
  }
  const bool both = !libraries_in(*folder + "/cuda12").empty();
  if (missing.empty()) fmt::print("ok:      simulated CUDA {} in {}\n", both ? "12 and 13" : "13", *folder);
  if (!both) {
    fmt::print("note:    programs of CUDA 12 need a build with the line that `scripts/cuda_headers --cuda12` prints\n");
  }
  if (const result<std::string> preload = find_preload(); !preload) {
    fmt::print("note:    --policy, and predict and fit of programs without PyTorch: {}; {}\n", preload.why().message(),
               how_to_complete());
  }
  const command_file python = python_of(command);
  if (python.exit_status != 0) {
    fmt::print("note:    no Python: {}\n", python.why);
    return status;
  }
  const auto is_module = [](const std::string& name) { return name.starts_with("python/"); };
  if (std::any_of(missing.begin(), missing.end(), is_module)) return status;
  return run_doctor(python.path, *folder, both ? "12,13" : "13") == 0 ? status : something_missing;
}

}  // namespace gpumem::cli
