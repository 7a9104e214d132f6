// Diagnoses why a request was refused. Examines the pool only after the out-of-memory ladder has failed.
#pragma once

#include "arena_state.hpp"

namespace gpumem {

struct oom_diagnosis {
  oom_cause cause = oom_cause::none;
  std::string pending_on{};         ///< for `pending_work`: the stream, graph or driver call that the memory waits for
  std::uint64_t pending_bytes = 0;  ///< bytes that wait for it
};

/// Uses only the pool's own data. Without the device's free memory it misses some fragmentation (`is_fragmented`).
[[nodiscard]] oom_diagnosis diagnose(const arena_state& state, const pending_request& request) GPUMEM_UNDER_LOCK;

/// Whether pool and device together had enough memory for the report's request, though neither had it alone.
[[nodiscard]] bool is_fragmented(const oom_report& report) noexcept;

/// The other processes that hold memory of the card, from NVML, largest first.
[[nodiscard]] std::vector<memory_holder> other_holders(const device_info& card);
/// The group's members, largest first.
[[nodiscard]] std::vector<memory_holder> members_of(group_ledger& group);

}  // namespace gpumem
