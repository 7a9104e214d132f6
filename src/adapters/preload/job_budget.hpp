// The budget that the process's device memory belongs to: its own limit, its group's, or its job's, the processes of
// one `gpumem run --limit`.
#pragma once

#include <memory>
#include <optional>

#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "group_ledger.hpp"

namespace gpumem::preload {

/// Whether the process belongs to a job on this device. A named group takes its place.
bool in_job(const settings& on_device) noexcept;

/// Whether a limit or a group on this device counts what the program takes beside gpumem's pools.
bool counts_beside_pool(const settings& on_device) noexcept;

/// GPUMEM_HEADROOM, where the limit is on the whole process. A job keeps it free once, for all its processes.
std::uint64_t headroom_of(const settings& on_device, bool whole_process) noexcept;

struct budget_of_process {
  byte_limit limit;                     ///< of the process; in a job a share of free memory is the job's bytes
  std::shared_ptr<group_ledger> group;  ///< may be null
};
/// Joins the group or the job. The membership lasts at least as long as the process if it is in a job: a context that
/// cannot be served is still there.
result<budget_of_process> open_budget(const device_info& info, const settings& on_device, std::uint64_t free_bytes);

/// `bad_setting` with the figures if what the job's processes measured leaves it nothing.
status job_can_hold(const settings& on_device, group_ledger* job);

}  // namespace gpumem::preload
