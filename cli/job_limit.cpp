#include "job_limit.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "group_ledger.hpp"
#include "shared_folder.hpp"

namespace gpumem::cli {
namespace {

constexpr std::string_view limit_variable = "GPUMEM_LIMIT";

/// The variables GPUMEM_LIMIT_<ordinal> as pairs of ordinal and value.
std::vector<std::pair<std::string, std::string>> limits_of_cards() {
  std::vector<std::pair<std::string, std::string>> limits;
  for (const auto& [name, value] : process_environment()) {
    if (!name.starts_with(limit_variable) || name.size() < limit_variable.size() + 2) continue;
    const std::string ordinal = name.substr(limit_variable.size() + 1);
    if (ordinal.find_first_not_of("0123456789") == std::string::npos) limits.emplace_back(ordinal, value);
  }
  return limits;
}

}  // namespace

job_limit::job_limit(const settings& config, bool each_process) {
  const auto of_cards = limits_of_cards();
  if (each_process || !config.group.empty() || !config.job.empty() || (!config.limit && of_cards.empty())) return;
  const result<std::string> folder = shared_folder(config.shared_folder);
  if (!folder) {
    ready_ = {errc::bad_setting, folder.why().message() + ", or --limit-each, which needs no folder"};
    return;
  }
  folder_ = *folder;
  group_ledger::remove_ended_jobs(folder_);
  ::setenv("GPUMEM_SHARED_FOLDER", folder_.c_str(), 1);
  ::setenv("GPUMEM_JOB", fmt::format("run-{}-{:08x}", ::getpid(), std::random_device{}()).c_str(), 1);
  if (config.limit) ::setenv("GPUMEM_JOB_LIMIT", config.text("limit").c_str(), 1);
  for (const auto& [ordinal, value] : of_cards) ::setenv(("GPUMEM_JOB_LIMIT_" + ordinal).c_str(), value.c_str(), 1);
}

job_limit::~job_limit() {
  if (!folder_.empty()) group_ledger::remove_ended_jobs(folder_);
}

}  // namespace gpumem::cli
