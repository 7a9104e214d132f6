#include "process_settings.hpp"

#include "device_registry.hpp"
#include "gpumem/policy.hpp"
#include "job_budget.hpp"
#include "log.hpp"

namespace gpumem::preload {
namespace {

process_settings read_environment() {
  process_settings process;
  // The shim intercepts the end of streams and the begin of captures, so neither needs a query.
  process.usable = process.options.set("stream_ids", "notify");
  std::vector<std::string> problems;
  if (process.usable) process.usable = process.options.apply(process_environment(), &problems);
  if (!process.usable) return process;
  for (const std::string& line : problems) log_line(line);
  if (!process.options.pools.empty() && !process.options.scope) {
    log_line(
        "GPUMEM_POOLS: the limit is on gpumem's own segments (GPUMEM_LIMIT_SCOPE=pool); what the program takes past "
        "gpumem comes on top");
  }
  if (process.options.scope == limit_scope::process && !process.options.limit && process.options.group.empty() &&
      process.options.overrides_of_others({}).empty()) {
    log_line("GPUMEM_LIMIT_SCOPE=process has no effect: there is no GPUMEM_LIMIT");
  }
  return process;
}

/// Whether `holds` is true for the settings of any device.
template <typename Condition>
bool of_any_device(Condition holds) {
  const process_settings& all = settings_of_process();
  if (!all.usable) return false;
  if (holds(all.options)) return true;
  if (all.options.overrides_of_others({}).empty()) return false;
  for (int ordinal = 0; ordinal < most_devices; ++ordinal) {
    if (holds(all.options.for_device(ordinal))) return true;
  }
  return false;
}

}  // namespace

const process_settings& settings_of_process() {
  static const auto* const only = new process_settings{read_environment()};
  return *only;
}

limit_scope scope_of(const settings& on_device) noexcept {
  return on_device.scope.value_or(on_device.pools.empty() ? limit_scope::process : limit_scope::pool);
}

// A policy that cannot be used, or lacks the limit it needs (`hard_cap`), stops gpumem from opening; then the calls
// that bypass gpumem's pools must fail, too.
bool guards_memory() noexcept {
  static const bool any = of_any_device([](const settings& options) {
    const result<policy_entry> policy = find_policy(options.policy);
    return options.limit || !options.pools.empty() || !options.group.empty() || options.group_limit ||
           in_job(options) || !policy || policy->needs.limit || policy->needs.pools;
  });
  return any;
}

bool limits_process() noexcept {
  static const bool any = of_any_device(counts_beside_pool);
  return any;
}

std::optional<byte_limit> process_limit_of(int ordinal) {
  if (!limits_process()) return std::nullopt;
  const settings own = settings_of_process().options.for_device(ordinal);
  return own.limit && scope_of(own) == limit_scope::process ? std::optional{own.limit} : std::nullopt;
}

}  // namespace gpumem::preload
