// The settings of a pool, which are fixed when it is opened.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "unlocked_section.hpp"

namespace gpumem {

class group_ledger;
namespace plan {
struct step_plan;
}

/// Defaults are those of the options.
struct pool_config {
  int ordinal = 0;  ///< logical
  std::string name;
  std::string policy_name;
  std::uint64_t limit_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_at_start_bytes = 0;
  stream_id_mode stream_ids = settings{}.stream_ids;
  stream_reuse reuse = settings{}.reuse;
  std::shared_ptr<const plan::step_plan> plan;  ///< the plan to follow; may be null
  std::shared_ptr<group_ledger> group;          ///< a second cap, shared with other processes; may be null
  bool verbose = false;                         ///< GPUMEM_VERBOSE
  static constexpr std::uint64_t waits_forever = wait_deadline::forever;
  /// The longest time that one request waits on the host (GPUMEM_FREE_WAIT). 0: waits for no work; or `waits_forever`.
  std::uint64_t free_wait_ns = settings{}.free_wait_ms * 1'000'000;
  bool thread_cache = settings{}.thread_cache;
  std::uint64_t allocator_number = 0;  ///< the owning allocator's number, which is never reused
  /// Called for every free before the block can be handed out again, under the pool's lock; may be empty.
  std::function<void(address at, std::uint64_t requested_bytes, stream_ref order)> before_free;
  std::uint64_t history_events = 0;  ///< GPUMEM_HISTORY
};

}  // namespace gpumem
