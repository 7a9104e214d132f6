// From settings to pools: which logical devices there are, what each may hold and which policy decides.
//
// Arithmetic, refusals and plan files; takes no memory. Every refusal is `bad_setting` and names the variable and the
// figures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"
#include "pool.hpp"

namespace gpumem {

/// The pools of one device, numbered from `first_ordinal`. `with` already holds the device's own overrides.
/// Asks the device how much is free: a share of what is free, and the reserve, are fixed here.
result<std::vector<pool_config>> logical_devices(device& on, const settings& with, int first_ordinal);

/// The parameters of the policy that settings give: each has the setting of its name (GPUMEM_SLACK) as an alias. One
/// that `text` names keeps the value there, unless the environment sets the alias and not the policy.
[[nodiscard]] policy_parameters parameters_from_settings(const policy_entry& of, const settings& with,
                                                         std::string_view text);

/// Whether a pool of this device's takes all that it is allowed at first use. `with` as above.
[[nodiscard]] bool takes_everything(const settings& with);

/// Logs each override of a device that is not among `ordinals`: `GPUMEM_LIMIT_1` with one card.
void log_overrides_without_device(const settings& with, const std::vector<int>& ordinals);
/// Logs, once a process, what the environment sets and an allocator over these devices has no use for.
void log_settings_without_effect(std::span<device* const> devices, const settings& with);

/// Of files that each logical device has its own of: `runs.csv.gz` for 0, `runs.1.csv.gz` for 1.
[[nodiscard]] std::string path_of_pool(const std::string& path, int ordinal);

/// Where a pool's own plan is, or will be: GPUMEM_PLAN, or `gpumem.plan` in the current folder. `with` as above.
[[nodiscard]] std::string plan_of_pool(const settings& with, int ordinal);

/// The plan of a pool whose policy follows one: its own or, where `serves` will not write that, the one that is named;
/// with none, growth serves, which is logged. Requests of a pool with a plan are counted in their order, so none may be
/// served from a thread's cache.
status read_plan_of(pool_config& config, const settings& with, const policy_entry& serves);

}  // namespace gpumem
