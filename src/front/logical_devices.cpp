#include "logical_devices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "assign_or_return.hpp"
#include "gpumem/policy.hpp"
#include "group_ledger.hpp"
#include "log.hpp"
#include "plan_file.hpp"
#include "shared_folder.hpp"
#include "trusted_path.hpp"
#include "units.hpp"

namespace gpumem {
namespace {

status refused(std::string_view assignment, std::string_view why) {
  return {errc::bad_setting, fmt::format("{}: {}", assignment, why)};
}

std::string device_text(const device_info& info) {
  return fmt::format("device {} ({}) has {}", info.ordinal, info.name, format_bytes(info.total_bytes));
}

/// The limit of one pool, or of all together, checked against the device.
result<std::uint64_t> resolved(const byte_limit& limit, std::string_view assignment, std::uint64_t total,
                               std::uint64_t free, const device_info& info) {
  const std::uint64_t bytes = limit.resolve(total, free);
  if (bytes > total) return refused(assignment, "expected at most what is there: " + device_text(info));
  if (bytes < info.granularity_bytes) {
    return refused(assignment, fmt::format("{} are less than one segment; expected at least {}", format_bytes(bytes),
                                           format_bytes(info.granularity_bytes)));
  }
  return bytes;
}

result<std::uint64_t> limit_of_device(const settings& options, const policy_entry& policy, const memory_info& memory,
                                      const device_info& info) {
  if (options.limit)
    return resolved(options.limit, options.assignment("limit"), info.total_bytes, memory.free_bytes, info);
  if (!policy.needs.everything || !options.pools.empty()) return info.total_bytes;
  const std::uint64_t usual = default_reserve_bytes(memory.free_bytes, info.compute_major);
  const std::uint64_t reserve = options.reserve_bytes.value_or(usual);
  if (memory.free_bytes < reserve || memory.free_bytes - reserve < info.granularity_bytes) {
    return refused(
        options.reserve_bytes ? options.assignment("reserve") : "GPUMEM_RESERVE=" + exact_bytes(reserve),
        fmt::format("leaves {} nothing of the {} that are free on device {}; expected to leave at least {}",
                    policy.name, format_bytes(memory.free_bytes), info.ordinal, format_bytes(info.granularity_bytes)));
  }
  return memory.free_bytes - reserve;
}

/// The group's budget on this device, shared by all its pools.
result<std::shared_ptr<group_ledger>> join_group(const settings& options, const device_info& info, std::uint64_t free) {
  std::optional<std::uint64_t> limit;
  if (options.group_limit) {
    ASSIGN_OR_RETURN(limit,
                     resolved(options.group_limit, options.assignment("group_limit"), info.total_bytes, free, info));
  }
  ASSIGN_OR_RETURN(const auto folder, shared_folder(options.shared_folder));
  return group_ledger::join(folder, options.group, info.uuid, limit);
}

}  // namespace

result<std::vector<pool_config>> logical_devices(device& gpu, const settings& options, int first_ordinal) {
  const device_info& info = gpu.info();
  const result<policy_entry> main_policy = find_policy(options.policy);
  if (!main_policy) return refused(options.assignment("policy"), main_policy.why().message());
  if (main_policy->needs.limit && !options.limit && options.pools.empty()) {
    return refused(options.assignment("policy"), "needs GPUMEM_LIMIT (4GiB, 30% or 80%free)");
  }
  if (main_policy->needs.pools && options.pools.empty()) {
    return refused(options.assignment("policy"), "needs GPUMEM_POOLS (2GiB,2GiB or train:8GiB,eval:30%)");
  }
  ASSIGN_OR_RETURN(const auto memory, gpu.memory());
  ASSIGN_OR_RETURN(const auto limit, limit_of_device(options, *main_policy, memory, info));

  pool_config common;
  common.total_bytes = info.total_bytes;
  common.free_at_start_bytes = memory.free_bytes;
  common.stream_ids = options.stream_ids;
  common.reuse = options.reuse;
  common.free_wait_ns =
      options.free_wait_ms == settings::wait_forever_ms ? pool_config::waits_forever : options.free_wait_ms * 1'000'000;
  common.thread_cache = options.thread_cache;
  if (!options.group.empty()) {
    ASSIGN_OR_RETURN(common.group, join_group(options, info, memory.free_bytes));
  } else if (options.group_limit) {
    return refused(options.assignment("group_limit"), "needs GPUMEM_GROUP, the group's name");
  }

  std::vector<pool_config> pools;
  std::uint64_t sum = 0;
  std::string figures;
  device_info shared = info;
  shared.total_bytes = limit;
  for (const pool_spec& spec : options.pools.empty() ? std::vector<pool_spec>(1) : options.pools) {
    pool_config& p = pools.emplace_back(common);
    p.ordinal = first_ordinal + static_cast<int>(pools.size()) - 1;
    p.name = spec.name.empty() ? fmt::format("{}", p.ordinal) : spec.name;
    p.policy_name = spec.policy.empty() ? options.policy : spec.policy;
    if (const result<policy_entry> known = find_policy(p.policy_name); !known) {
      return refused(options.assignment("pools"), known.why().message());
    }
    const std::string of_pool = fmt::format("{}: pool {}", options.assignment("pools"), p.name);
    ASSIGN_OR_RETURN(const auto bytes,
                     options.pools.empty() ? limit : resolved(spec.limit, of_pool, limit, memory.free_bytes, shared));
    p.limit_bytes = bytes;
    sum += bytes;
    figures += fmt::format("{}{}", figures.empty() ? "" : " + ", format_bytes(bytes));
  }
  if (sum <= limit) return pools;
  return refused(options.assignment("pools"),
                 fmt::format("{} = {} do not fit; expected at most {} ({})", figures, format_bytes(sum),
                             format_bytes(limit), options.limit ? options.assignment("limit") : device_text(info)));
}

policy_parameters parameters_from_settings(const policy_entry& policy, const settings& options, std::string_view text) {
  policy_parameters parameters;
  const result<policy_parameters> named = parameters_in(text);
  const setting_source policy_from = options.source(options.pools.empty() ? "policy" : "pools");
  for (const policy_parameter& p : policy.parameters) {
    const setting_source origin = options.source(p.name);
    if (origin == setting_source::default_value) continue;
    const bool wins = origin == setting_source::environment && policy_from != setting_source::environment;
    if (!wins && named && named->contains(p.name)) continue;
    if (std::string value = options.text(p.name); !value.empty()) parameters.emplace(p.name, std::move(value));
  }
  return parameters;
}

std::string path_of_pool(const std::string& path, int ordinal) {
  if (ordinal == 0) return path;
  const std::size_t name = path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/') + 1;
  const std::size_t dot = path.find('.', name + 1);
  return dot == std::string::npos ? fmt::format("{}.{}", path, ordinal)
                                  : fmt::format("{}.{}{}", path.substr(0, dot), ordinal, path.substr(dot));
}

std::string plan_of_pool(const settings& options, int ordinal) {
  return path_of_pool(options.plan_path.empty() ? "gpumem.plan" : options.plan_path, ordinal);
}

bool trusts_default_plan(const settings& options) {
  if (!options.plan_path.empty() || !runs_secure()) return true;
  log_once("no plan is read or written: the working folder is the user's, and this program has more rights");
  return false;
}

status read_plan_of(pool_config& config, const settings& options, const policy_entry& serves) {
  std::string path = plan_of_pool(options, config.ordinal);
  const bool own = ::access(path.c_str(), F_OK) == 0;
  if (serves.needs.plan.records) {
    if (!own || !trusts_default_plan(options)) return {};  // the first run
  } else if (options.plan_path.empty()) {
    log_line(fmt::format("pool {}: policy {} has no plan (GPUMEM_PLAN); growth serves instead", config.name,
                         config.policy_name));
    return {};
  } else if (!own) {
    path = options.plan_path;
  }
  result<plan::step_plan> read = plan::read_plan(path);
  if (!read) {  // the message begins with the path
    const std::string set_as = options.plan_path.empty() ? "GPUMEM_PLAN=" + path : options.assignment("plan");
    return refused(set_as, read.why().message().substr(set_as.ends_with("=" + path) ? path.size() + 2 : 0));
  }
  config.plan = std::make_shared<const plan::step_plan>(*std::move(read));
  config.thread_cache = false;
  return {};
}

void log_overrides_without_device(const settings& options, const std::vector<int>& ordinals) {
  for (const std::string& each : options.overrides_of_others(ordinals)) {
    log_once(fmt::format("{} has no effect: there is no such device; expected {}", each, fmt::join(ordinals, ", ")));
  }
}

void log_settings_without_effect(std::span<device* const> devices, const settings& options) {
  const auto from_environment = [&](std::string_view name) {
    return options.source(name) == setting_source::environment;
  };
  std::vector<int> ordinals;
  bool everything = false;  // a policy that leaves a reserve serves a device without a limit
  for (const device* d : devices) {
    const settings own = options.for_device(d->info().ordinal);
    ordinals.push_back(d->info().ordinal);
    everything = everything || (takes_everything(own) && !own.limit && own.pools.empty());
  }
  log_overrides_without_device(options, ordinals);
  if (options.scope == limit_scope::process && from_environment("limit_scope")) {
    log_once(
        "GPUMEM_LIMIT_SCOPE=process has no effect in a program that links gpumem: its limit is on gpumem's pools; "
        "`gpumem run` puts it on the whole process");
  }
  if (options.reserve_bytes && from_environment("reserve") && !everything) {
    log_once(options.assignment("reserve") +
             " has no effect: expected GPUMEM_POLICY=grab_all without a limit or pools");
  }
}

bool takes_everything(const settings& options) {
  const auto takes = [](const std::string& name) {
    const result<policy_entry> entry = find_policy(name);
    return entry && entry->needs.everything;
  };
  if (options.pools.empty()) return takes(options.policy);
  const auto policy_of = [&](const pool_spec& each) { return each.policy.empty() ? options.policy : each.policy; };
  return std::ranges::any_of(options.pools, takes, policy_of);
}

}  // namespace gpumem
