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

/// Beside the program, or where an installation puts libraries; the build tree has it beside the library.
result<std::string> find_preload() {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::string looked;
  for (const fs::path& folder : {here, here / ".." / GPUMEM_LIBRARY_FOLDER, here / ".." / "lib", here / ".." / "src",
                                 here / ".." / "src" / "adapters"}) {
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

/// CUDA_VISIBLE_DEVICES for what GPUMEM_DEVICES chooses, and the leases behind it.
result<std::string> choose_cards(const settings& with, std::vector<card_lease>& leases) {
  if (with.devices.how == device_choice::kind::none) return std::string{};
  result<visible_now> visible = cards_visible_now();
  if (!visible) {
    if (!with.soft_placement) return visible.why();
    log_line(visible.why().message());
    *visible = visible_now{};
  }
  result<placement> placed = place_on_cards(with.devices, visible->cards, with.soft_placement);
  if (!placed) return placed.why();
  for (const std::string& line : placed->warnings) log_line(line);
  if (with.verbose) {
    for (const std::string& line : placed->notes) log_line(line);
    for (const std::string& line : visible->hidden) log_line("not visible: " + line);
  }
  std::string list;
  for (const std::size_t i : placed->cards) {
    list += (list.empty() ? "" : ",") + visible->cards[i].uuid;
  }
  leases = std::move(placed->leases);
  return list;
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
  std::vector<card_lease> leases;
  if (settled->devices) {
    const result<std::string> list = choose_cards(*settled, leases);
    if (!list) {
      return complain(list.why().message(), list.code() == errc::bad_setting ? bad_input : failed);
    }
    close_on_exec_but(inherited);
    for (card_lease& lease : leases) {
      if (const status kept = lease.keep_across_exec(); !kept) return complain(kept.message(), failed);
    }
    ::setenv("CUDA_VISIBLE_DEVICES", list->c_str(), 1);
    if (settled->verbose) log_line(fmt::format("CUDA_VISIBLE_DEVICES={}", *list));
  }
  for (const auto& [name, value] : with.settings) ::setenv(variable_of(name).c_str(), value.c_str(), 1);
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
