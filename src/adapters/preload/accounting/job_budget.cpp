#include "job_budget.hpp"

#include <fmt/format.h>

#include <vector>

#include "assign_or_return.hpp"
#include "checked_mutex.hpp"
#include "process_settings.hpp"
#include "shared_folder.hpp"

namespace gpumem::preload {
namespace {

/// Keeps the process a member until it ends.
void keep_membership(const std::shared_ptr<group_ledger>& job) {
  static checked_mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<group_ledger>>;
  const mutex_lock lock{mutex};
  for (const auto& each : *kept) {
    if (each == job) return;
  }
  kept->push_back(job);
}

status job_too_small(const settings& options, std::uint64_t headroom_bytes,
                     const group_ledger::measured_memory& measured) {
  return {errc::bad_setting,
          fmt::format("{} for all processes of `gpumem run`: contexts and modules of {} take {} and GPUMEM_HEADROOM is "
                      "{}; expected more than {}",
                      options.assignment("job_limit"),
                      measured.members == 1 ? "1 process" : fmt::format("{} processes", measured.members),
                      format_bytes(measured.bytes), format_bytes(headroom_bytes),
                      format_bytes(measured.bytes + headroom_bytes))};
}

}  // namespace

bool in_job(const settings& on_device) noexcept {
  return !on_device.job.empty() && on_device.job_limit && on_device.group.empty();
}

bool counts_beside_pool(const settings& on_device) noexcept {
  return (on_device.limit || !on_device.group.empty() || in_job(on_device)) &&
         scope_of(on_device) == limit_scope::process;
}

std::uint64_t headroom_of(const settings& on_device, bool whole_process) noexcept {
  return whole_process ? on_device.headroom_bytes.value_or(0) : 0;
}

result<budget_of_process> open_budget(const device_info& info, const settings& on_device, std::uint64_t free_bytes) {
  budget_of_process budget{.limit = on_device.limit, .group = nullptr};
  if (on_device.group.empty() && !in_job(on_device)) return budget;
  const std::uint64_t total = info.total_bytes;
  ASSIGN_OR_RETURN(const auto folder, shared_folder(on_device.shared_folder));
  if (!in_job(on_device)) {
    const auto limit = on_device.group_limit ? std::optional{on_device.group_limit.resolve(total, free_bytes)}
                                             : std::optional<std::uint64_t>{};
    ASSIGN_OR_RETURN(budget.group, group_ledger::join(folder, on_device.group, info.uuid, limit));
    return budget;
  }
  const std::uint64_t limit = on_device.job_limit.resolve(total, free_bytes);
  const std::uint64_t headroom = headroom_of(on_device, scope_of(on_device) == limit_scope::process);
  // process_budget::open refuses a limit below the headroom.
  ASSIGN_OR_RETURN(budget.group, group_ledger::join(folder, on_device.job, info.uuid,
                                                    limit > headroom ? limit - headroom : limit, ledger_kind::job));
  keep_membership(budget.group);
  // The first process has resolved the share; resolving it again would take a share of the rest.
  if (budget.limit.unit == byte_limit::kind::of_free && budget.limit) {
    budget.limit = {.unit = byte_limit::kind::bytes, .bytes = budget.group->limit() + headroom, .fraction = 0};
  }
  return budget;
}

status job_can_hold(const settings& on_device, group_ledger* job) {
  if (job == nullptr || !job->counts_measured()) return {};
  const group_ledger::measured_memory measured = job->measured();
  if (measured.bytes < job->limit()) return {};
  const std::uint64_t headroom = headroom_of(on_device, scope_of(on_device) == limit_scope::process);
  return job_too_small(on_device, headroom, measured);
}

}  // namespace gpumem::preload
