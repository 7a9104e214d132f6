// Converts settings into pools: the logical devices, the limit and the policy of each.
//
// Arithmetic, refusals and plan files; takes no device memory. Every refusal is `bad_setting` and names the variable
// and the figures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"
#include "pool_config.hpp"

namespace gpumem {

/// The pools of one device, numbered from `first_ordinal`. `options` includes the device's overrides. Asks the device
/// for its free memory, which fixes shares of free memory and the reserve.
result<std::vector<pool_config>> logical_devices(device& gpu, const settings& options, int first_ordinal);

/// The parameters of a policy that settings give: the setting GPUMEM_<NAME> is an alias of each parameter. A parameter
/// named in `text` keeps that value, unless the environment sets the alias but not the policy.
[[nodiscard]] policy_parameters parameters_from_settings(const policy_entry& policy, const settings& options,
                                                         std::string_view text);

/// Whether a pool of this device takes all allowed memory at first use. `options` as above.
[[nodiscard]] bool takes_everything(const settings& options);

/// Logs each override for a device that is not among `ordinals`, such as `GPUMEM_LIMIT_1` with one card.
void log_overrides_without_device(const settings& options, const std::vector<int>& ordinals);
/// Logs, once per process, variables of the environment that have no effect on an allocator over these devices.
void log_settings_without_effect(std::span<device* const> devices, const settings& options);

/// The path of a logical device's own file: `runs.csv.gz` for 0, `runs.1.csv.gz` for 1.
[[nodiscard]] std::string path_of_pool(const std::string& path, int ordinal);

/// The path of a pool's own plan: GPUMEM_PLAN, or `gpumem.plan` in the current folder. `options` as above.
[[nodiscard]] std::string plan_of_pool(const settings& options, int ordinal);

/// False if the pool's plan would be `gpumem.plan` in the current folder of a user with fewer rights than the program,
/// which is logged.
[[nodiscard]] bool trusts_default_plan(const settings& options);

/// Reads the plan of a pool whose policy follows one: the pool's own plan, or if `serves` does not write plans, the
/// plan in GPUMEM_PLAN. Without a plan, logs that the pool works as under `growth`. Disables the thread caches of a
/// pool with a plan, because it must see every request in order.
status read_plan_of(pool_config& config, const settings& options, const policy_entry& serves);

}  // namespace gpumem
