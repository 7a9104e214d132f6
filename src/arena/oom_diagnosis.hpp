// Why a request was refused. Looks at the pool only once the ladder has given up.
#pragma once

#include "arena_state.hpp"

namespace gpumem {

struct oom_diagnosis {
  oom_cause cause = oom_cause::none;
  std::string pending_on{};         ///< for `pending_work`: the stream, the graph or the call that the memory waits for
  std::uint64_t pending_bytes = 0;  ///< that wait
};

/// From what the pool knows. Without the device's free memory it cannot tell all fragmentation (`is_fragmented`).
[[nodiscard]] oom_diagnosis diagnose(const arena_state& state, const pending_request& request) GPUMEM_UNDER_LOCK;

/// Whether pool and device together had enough memory for the report's request, though neither had it alone.
[[nodiscard]] bool is_fragmented(const oom_report& report) noexcept;

/// The other processes that hold memory of the card, from NVML; those with the most first.
[[nodiscard]] std::vector<memory_holder> other_holders(const device_info& card);
/// The group's members, with the most memory first.
[[nodiscard]] std::vector<memory_holder> members_of(group_ledger& group);

}  // namespace gpumem
