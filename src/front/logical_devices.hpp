// From settings to pools: which logical devices there are, what each may hold and which policy decides.
//
// Arithmetic and refusals only; takes no memory. Every refusal is `bad_setting` and names the variable and the figures.
#pragma once

#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "pool.hpp"

namespace gpumem {

/// The pools of one device, numbered from `first_ordinal`. `with` already holds the device's own overrides.
/// Asks the device how much is free: a share of what is free, and the reserve, are fixed here.
result<std::vector<pool_config>> logical_devices(device& on, const settings& with, int first_ordinal);

}  // namespace gpumem
