// Checks all settings with the library's parser first, then sets the environment, takes leases and runs the command. A
// process of its own keeps the leases until the last descendant of the command has ended.
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
#include "fail.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"
#include "group_ledger.hpp"
#include "job_limit.hpp"
#include "job_rank.hpp"
#include "keeper.hpp"
#include "log.hpp"
#include "oom_summary.hpp"
#include "process_files.hpp"
#include "supervise.hpp"
#include "text.hpp"
#include "units.hpp"
#include "visible_now.hpp"
#include "wait_for_cards.hpp"
#include "written_file.hpp"

extern "C" char** environ;

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

constexpr int failed = 1;
constexpr int bad_input = 2;
constexpr const char* preload_name = "libgpumem_preload.so";

/// Checks the group's ledger before the command begins, rather than at its first allocation.
status group_can_be_joined(const settings& config) {
  if (config.group.empty()) return {};
  const result<std::string> folder = shared_folder(config.shared_folder);
  return folder ? group_ledger::inspect(*folder, config.group) : folder.why();
}

std::string variable_of(const std::string& option) {
  const auto& table = option_table();
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const option_row& each) { return each.option == option; });
  return std::string{row->variable};
}

/// The environment's settings, overridden by the command line's. Fails if any of the resulting settings is invalid.
result<settings> read_settings(const run_options& options) {
  settings merged;
  environment variables = process_environment();
  std::erase_if(variables, [&](const auto& each) {  // variables that an option overrides need not be valid
    return std::any_of(options.settings.begin(), options.settings.end(),
                       [&](const auto& option) { return each.first == variable_of(option.first); });
  });
  if (status ok = merged.apply(variables); !ok) return ok;  // the library reports other problems and continues
  for (const auto& [name, value] : options.settings) {
    if (status ok = merged.set(name, value); !ok) {
      std::string option = name;
      std::replace(option.begin(), option.end(), '_', '-');
      return status{errc::bad_setting, "--" + option + ok.message().substr(name.size())};
    }
  }
  // A policy named in the environment may be one that the program registers itself, so it cannot be checked here.
  const bool named_here = merged.source("policy") == setting_source::code;
  const result<policy_entry> policy = find_policy(merged.policy);
  if (!policy && named_here) {
    return status{errc::bad_setting, fmt::format("--policy={}: {}", merged.policy, policy.why().message())};
  }
  if (policy && policy->needs.limit && !merged.limit && merged.pools.empty()) {
    return status{errc::bad_setting,
                  fmt::format("{}={}: needs {} (4GiB, 30% or 80%free)", named_here ? "--policy" : "GPUMEM_POLICY",
                              merged.policy, named_here ? "--limit" : "GPUMEM_LIMIT or --limit")};
  }
  for (const pool_spec& each : merged.pools) {
    const result<policy_entry> known = find_policy(each.policy.empty() ? merged.policy : each.policy);
    if (!known && merged.source("pools") == setting_source::code && !each.policy.empty()) {
      return status{errc::bad_setting, fmt::format("--pools={}: {}", pools_text(merged.pools), known.why().message())};
    }
  }
  if (policy && policy->needs.pools && merged.pools.empty()) {
    return status{errc::bad_setting,
                  fmt::format("{}={}: needs {} (2GiB,2GiB)", named_here ? "--policy" : "GPUMEM_POLICY", merged.policy,
                              named_here ? "--pools" : "GPUMEM_POOLS or --pools")};
  }
  if (merged.scope == limit_scope::process && !merged.pools.empty()) {
    return status{errc::bad_setting, "GPUMEM_LIMIT_SCOPE=process with pools: expected one or the other"};
  }
  if (merged.group_limit && merged.group.empty()) {
    const bool by_option = merged.source("group_limit") == setting_source::code;
    return status{errc::bad_setting,
                  fmt::format("{}={}: needs {}, the group's name", by_option ? "--group-limit" : "GPUMEM_GROUP_LIMIT",
                              merged.group_limit.to_string(), by_option ? "--group" : "GPUMEM_GROUP")};
  }
  if (status sound = group_can_be_joined(merged); !sound) return sound;
  if (options.wait_s && !merged.devices) merged.devices.how = device_choice::kind::automatic;
  return merged;
}

std::vector<int> open_descriptors() {
  std::vector<int> descriptors;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator{"/proc/self/fd", ignored}) {
    descriptors.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return descriptors;
}

/// Keeps NVML's descriptors out of the command.
void close_on_exec_but(const std::vector<int>& inherited) {
  for (const int fd : open_descriptors()) {
    if (std::find(inherited.begin(), inherited.end(), fd) == inherited.end()) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

/// The variable that applies to this rank only (GPUMEM_LIMIT_R2).
std::string variable_of_rank(const std::string& option) {
  return fmt::format("{}_R{}", variable_of(option), this_rank() ? this_rank()->rank : 0);
}

}  // namespace

result<std::string> find_preload() {
  std::error_code error;
  const fs::path own_folder = own_program().parent_path();
  std::string looked;
  for (const fs::path& folder : {own_folder, own_folder / ".." / GPUMEM_LIBRARY_FOLDER / "gpumem",
                                 own_folder / ".." / "lib" / "gpumem", own_folder / ".." / GPUMEM_LIBRARY_FOLDER,
                                 own_folder / ".." / "lib", own_folder / ".." / "src" / "adapters" / "preload"}) {
    const fs::path file = (folder / preload_name).lexically_normal();
    if (fs::is_regular_file(file, error)) {
      if (file.string().find_first_of(": \t") == std::string::npos) return file.string();
      return status{errc::unsupported,
                    fmt::format("{}: LD_PRELOAD cannot hold a path with ':' or a space", file.string())};
    }
    looked += fmt::format("{}{}", looked.empty() ? "" : ", ", folder.lexically_normal().string());
  }
  return status{errc::unsupported, fmt::format("no {} in {}: was it built and installed?", preload_name, looked)};
}

int run_command(const run_options& options) {
  const std::vector<int> inherited = open_descriptors();
  const command_file command = find_command(options.command.front());
  if (command.exit_status != 0) return fail(command.exit_status, command.why);
  const result<settings> effective = read_settings(options);
  if (!effective) return fail(bad_input, effective.why().message());
  const result<std::string> preload = find_preload();
  if (!preload) return fail(failed, preload.why().message());
  result<chosen_cards> chosen{chosen_cards{}};  // holds the leases
  if (effective->devices) {
    chosen =
        options.wait_s ? wait_for_cards(*effective, *options.wait_s) : choose_cards(*effective, visible_by::driver);
    if (!chosen) {
      return fail(chosen.code() == errc::bad_setting ? bad_input : failed, chosen.why().message());
    }
    close_on_exec_but(inherited);
    if (const status kept = chosen->claims.keep_across_exec(); !kept) return fail(failed, kept.message());
    ::setenv("CUDA_VISIBLE_DEVICES", chosen->list.c_str(), 1);
  }
  for (const auto& [name, value] : options.settings) {
    ::setenv(variable_of(name).c_str(), value.c_str(), 1);
    ::unsetenv(variable_of_rank(name).c_str());  // the command line wins over the rank's own
  }
  if (!effective->shared_folder.empty()) {  // the command may change its folder, and its processes must still meet
    std::error_code error;
    const fs::path folder = fs::absolute(effective->shared_folder, error);
    if (!error) ::setenv("GPUMEM_SHARED_FOLDER", folder.c_str(), 1);
  }
  const job_limit job{*effective, options.limit_each};
  if (!job.ready()) return fail(bad_input, job.ready().message());
  ::unsetenv(variable_of_rank("devices").c_str());
  ::unsetenv("GPUMEM_DEVICES");  // applied: the visible devices are now the chosen ones
  const char* const before = std::getenv("LD_PRELOAD");
  const std::string list = before != nullptr && *before != '\0' ? fmt::format("{}:{}", *preload, before) : *preload;
  ::setenv("LD_PRELOAD", list.c_str(), 1);
  if (!command.no_preload.empty()) {
    log_line(fmt::format("{} {}: nothing can be preloaded into it, so gpumem does not serve it", command.path,
                         command.no_preload));
  }
  const oom_summary summary{*effective};
  begin_job();
  const ended how = chosen->claims.empty() ? run_child(command.path, options.command)
                                           : run_kept(command.path, options.command, chosen->claims);
  if (how.exec_errno != 0) {
    return fail(how.exec_errno == ENOENT ? not_found : not_executable,
                fmt::format("{}: cannot be run: {}", command.path, std::strerror(how.exec_errno)));
  }
  summary.print();
  return status_of(how);
}

}  // namespace gpumem::cli
