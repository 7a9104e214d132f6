// Diagnoses why a request was refused. Examines the pool only after the out-of-memory ladder has failed.
#pragma once

#include "arena_state.hpp"

namespace gpumem {

/// Fills in the cause of a refused request, from the pool's own data. Without the device's free memory it misses some
/// fragmentation (`ask_device`).
void explain(const arena_state& state, const pending_request& request, oom_report* report) GPUMEM_UNDER_LOCK;
/// Adds free and held memory from the device, the group and NVML, queried without the lock. May change the cause to
/// fragmentation. Requires the report's statistics.
void ask_device(const arena_state& state, arena_lock& lock, oom_report* report) GPUMEM_UNDER_LOCK;

/// The other processes that hold memory of the card, from NVML, largest first.
[[nodiscard]] std::vector<memory_holder> other_holders(const device_info& card);

}  // namespace gpumem
