#include "process_settings.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpumem/policy.hpp"
#include "job_budget.hpp"
#include "log.hpp"
#include "sees.hpp"
#include "serving.hpp"

namespace gpumem::preload {
namespace {

process_settings read_environment() {
  process_settings out;
  // The shim sees streams end and captures begin.
  if (sees_everything) out.usable = out.with.set("stream_ids", "notify");
  std::vector<std::string> problems;
  if (out.usable) out.usable = out.with.apply(process_environment(), &problems);
  if (!out.usable) return out;
  for (const std::string& line : problems) log_line(line);
  if (sees_everything && !out.with.pools.empty() && !out.with.scope) {
    log_line(
        "GPUMEM_POOLS: the limit is on gpumem's own segments (GPUMEM_LIMIT_SCOPE=pool); what the program takes past "
        "gpumem comes on top");
  }
  if (out.with.scope == limit_scope::process && !out.with.limit && out.with.group.empty() &&
      out.with.overrides_of_others({}).empty()) {
    log_line("GPUMEM_LIMIT_SCOPE=process has no effect: there is no GPUMEM_LIMIT");
  }
  return out;
}

/// Whether `holds` is true of the settings of any device.
template <typename Condition>
bool of_any_device(Condition holds) {
  const process_settings& all = settings_of_process();
  if (!all.usable) return false;
  if (holds(all.with)) return true;
  if (all.with.overrides_of_others({}).empty()) return false;
  for (int ordinal = 0; ordinal < most_devices; ++ordinal) {
    if (holds(all.with.for_device(ordinal))) return true;
  }
  return false;
}

}  // namespace

const process_settings& settings_of_process() {
  static const auto* const only = new process_settings{read_environment()};
  return *only;
}

// Relinked and recompiled programs are seen in part, so that a limit on the whole process has to be asked for there.
limit_scope scope_of(const settings& on_device) noexcept {
  const bool whole = sees_everything && on_device.pools.empty();
  return on_device.scope.value_or(whole ? limit_scope::process : limit_scope::pool);
}

// A policy that cannot be used, or lacks the limit that it needs (`hard_cap`), stops gpumem from opening; what the
// program asks past gpumem is then refused as well.
bool guards_memory() noexcept {
  static const bool any = of_any_device([](const settings& s) {
    const result<policy_entry> decides = find_policy(s.policy);
    return s.limit || !s.pools.empty() || !s.group.empty() || s.group_limit || in_job(s) || !decides ||
           decides->needs.limit || decides->needs.pools;
  });
  return any;
}

bool limits_process() noexcept {
  static const bool any = of_any_device(counts_beside_pool);
  return any;
}

std::optional<byte_limit> process_limit_of(int ordinal) {
  if (!limits_process()) return std::nullopt;
  const settings own = settings_of_process().with.for_device(ordinal);
  return own.limit && scope_of(own) == limit_scope::process ? std::optional{own.limit} : std::nullopt;
}

}  // namespace gpumem::preload
