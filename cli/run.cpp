// Everything is checked before anything is set, by the library's own parser; then come the environment, the leases and
// exec. The command inherits the leases as open sockets and keeps them to its end.
#include "run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "command_file.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"
#include "group_ledger.hpp"
#include "log.hpp"
#include "text.hpp"
#include "visible_now.hpp"

extern "C" char** environ;

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

constexpr int failed = 1;
constexpr int bad_input = 2;
constexpr const char* preload_name = "libgpumem_preload.so";

int complain(std::string_view why, int exit_status) {
  fmt::print(stderr, "gpumem: {}\n", printable(why, 8192));
  return exit_status;
}

/// Beside the program, or where an installation puts libraries; the build tree has it where it is made.
result<std::string> find_preload() {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::string looked;
  for (const fs::path& folder :
       {here, here / ".." / GPUMEM_LIBRARY_FOLDER, here / ".." / "lib", here / ".." / "src" / "adapters" / "preload"}) {
    const fs::path file = (folder / preload_name).lexically_normal();
    if (fs::is_regular_file(file, error)) {
      if (file.string().find_first_of(": \t") == std::string::npos) return file.string();
      return status{errc::unsupported,
                    fmt::format("{}: the loader takes no path with ':' or a space in LD_PRELOAD", file.string())};
    }
    looked += fmt::format("{}{}", looked.empty() ? "" : ", ", folder.lexically_normal().string());
  }
  return status{errc::unsupported, fmt::format("no {} in {}: was it built and installed?", preload_name, looked)};
}

/// A ledger that members cannot trust is found before the command begins, and not by its first allocation.
status group_can_be_joined(const settings& with) {
  if (with.group.empty()) return {};
  const result<std::string> folder = shared_folder(with.shared_folder);
  return folder ? group_ledger::inspect(*folder, with.group) : folder.why();
}

/// `--limit` is a limit on the whole program: that is what whoever shares the card is promised. Pools have limits of
/// their own.
bool limits_whole_process(const run_options& with, const settings& settled) {
  const bool asked =
      std::any_of(with.settings.begin(), with.settings.end(), [](const auto& each) { return each.first == "limit"; });
  return asked && settled.pools.empty() && settled.source("limit_scope") == setting_source::default_value;
}

/// The environment's settings with those of the command line over them, each of which must be good.
result<settings> read_settings(const run_options& with) {
  settings out;
  std::vector<std::string> problems;
  if (status ok = out.apply(process_environment(), &problems); !ok) return ok;
  // The library says the rest again and goes on; a card that was meant and not read must not become any card.
  const bool overruled =
      std::any_of(with.settings.begin(), with.settings.end(), [](const auto& each) { return each.first == "devices"; });
  for (const std::string& problem : problems) {
    if (problem.starts_with("GPUMEM_DEVICES=") && !overruled) return status{errc::bad_setting, problem};
  }
  for (const auto& [name, value] : with.settings) {
    if (status ok = out.set(name, value); !ok) {
      std::string option = name;
      std::replace(option.begin(), option.end(), '_', '-');
      return status{errc::bad_setting, "--" + option + ok.message().substr(name.size())};
    }
  }
  // A policy that the program registers itself is known to it alone; it is named in the environment.
  const bool named_here = out.source("policy") == setting_source::code;
  const result<policy_entry> decides = find_policy(out.policy);
  if (!decides && named_here) return decides.why();
  if (decides && decides->needs_limit && !out.limit && out.pools.empty()) {
    return status{errc::bad_setting, fmt::format("policy {} needs --limit (4GiB, 30% or 80%free)", out.policy)};
  }
  if (decides && decides->needs_pools && out.pools.empty()) {
    return status{errc::bad_setting, fmt::format("policy {} needs --pools (2GiB,2GiB)", out.policy)};
  }
  if (out.group_limit && out.group.empty()) {
    return status{errc::bad_setting, "--group-limit: needs --group, the group's name"};
  }
  if (status sound = group_can_be_joined(out); !sound) return sound;
  return out;
}

std::vector<int> open_descriptors() {
  std::vector<int> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{"/proc/self/fd", ignored}) {
    out.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return out;
}

/// What NVML has opened here is none of the command's.
void close_on_exec_but(const std::vector<int>& inherited) {
  for (const int fd : open_descriptors()) {
    if (std::find(inherited.begin(), inherited.end(), fd) == inherited.end()) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

std::string variable_of(const std::string& option) {
  const auto& table = option_table();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const option_row& each) { return each.option == option; });
  return std::string{row->variable};
}

}  // namespace

int run_command(const run_options& with) {
  const std::vector<int> inherited = open_descriptors();
  const command_file command = find_command(with.command.front());
  if (command.exit_status != 0) return complain(command.why, command.exit_status);
  const result<settings> settled = read_settings(with);
  if (!settled) return complain(settled.why().message(), bad_input);
  const result<std::string> preload = find_preload();
  if (!preload) return complain(preload.why().message(), failed);
  result<chosen_cards> chosen{chosen_cards{}};  // its leases end with it
  if (settled->devices) {
    chosen = choose_cards(*settled, visible_by::driver);
    if (!chosen) {
      return complain(chosen.why().message(), chosen.code() == errc::bad_setting ? bad_input : failed);
    }
    close_on_exec_but(inherited);
    for (card_lease& lease : chosen->leases) {
      if (const status kept = lease.keep_across_exec(); !kept) return complain(kept.message(), failed);
    }
    ::setenv("CUDA_VISIBLE_DEVICES", chosen->list.c_str(), 1);
  }
  for (const auto& [name, value] : with.settings) ::setenv(variable_of(name).c_str(), value.c_str(), 1);
  if (limits_whole_process(with, *settled)) ::setenv("GPUMEM_LIMIT_SCOPE", "process", 1);
  ::unsetenv("GPUMEM_DEVICES");  // it has been obeyed: what it named is what is visible now
  const char* const before = std::getenv("LD_PRELOAD");
  const std::string list = before != nullptr && *before != '\0' ? fmt::format("{}:{}", *preload, before) : *preload;
  ::setenv("LD_PRELOAD", list.c_str(), 1);
  if (!command.no_preload.empty()) {
    log_line(fmt::format("{} {}: nothing can be preloaded into it, so gpumem does not serve it", command.path,
                         command.no_preload));
  }
  std::vector<char*> words;
  std::vector<std::string> copies = with.command;
  for (std::string& word : copies) words.push_back(word.data());
  words.push_back(nullptr);
  ::execvp(command.path.c_str(), words.data());
  return complain(fmt::format("{}: cannot be run: {}", command.path, std::strerror(errno)),
                  errno == ENOENT ? not_found : not_executable);
}

}  // namespace gpumem::cli
