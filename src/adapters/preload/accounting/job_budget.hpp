// The budget for the process's device memory: its own limit, its group's, or its job's. A job is the processes of one
// `gpumem run --limit`.
#pragma once

#include <memory>

#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "group_ledger.hpp"

namespace gpumem::preload {

/// Whether the process belongs to a job on this device. A named group replaces the job.
bool in_job(const settings& on_device) noexcept;

/// Whether a limit or a group on this device counts memory that the program takes outside gpumem's pools.
bool counts_beside_pool(const settings& on_device) noexcept;

/// Returns GPUMEM_HEADROOM, which applies if the limit is on the whole process. A job reserves it once for all
/// processes.
std::uint64_t headroom_of(const settings& on_device, bool whole_process) noexcept;

struct budget_of_process {
  byte_limit limit;                     ///< of the process; in a job, a share of free memory becomes the job's bytes
  std::shared_ptr<group_ledger> group;  ///< may be null
};
/// Joins the group or the job. A job's membership lasts at least as long as the process, because a context that gpumem
/// cannot serve still holds memory.
result<budget_of_process> open_budget(const device_info& info, const settings& on_device, std::uint64_t free_bytes);

/// `bad_setting` with the figures if the measured memory of the job's processes leaves none for this one.
status job_can_hold(const settings& on_device, group_ledger* job);

}  // namespace gpumem::preload
