#include "arena_state.hpp"

#include <algorithm>

namespace gpumem {

arena_state::arena_state(device& device, const arena_config& configuration, cache_client& client,
                         std::unique_ptr<policy> policy, arena_mutex& guard)
    : config{configuration},
      mutex{guard},
      own_device{device},
      caches{client},
      observers{configuration.ordinal},
      pool_budget{configuration.limit_bytes, configuration.group},
      pool_policy{std::move(policy), configuration.policy_name},
      blocks{pool_policy.segment_classes()},
      streams{device, blocks, configuration.stream_ids},
      uses{blocks, streams, configuration.name},
      pages{blocks, device, configuration.name} {
  mutex.keep_for_holder(streams.context_event_permits());
}

pool_view arena_state::view() const {
  return {.total_bytes = config.total_bytes,
          .free_at_start_bytes = config.free_at_start_bytes,
          .limit_bytes = pool_budget.limit(),
          .reserved_bytes = pool_budget.reserved(),
          .live_bytes = caches.live_bytes(),
          .peak_live_bytes = caches.peak_live_bytes(),
          .granularity_bytes = own_device.info().granularity_bytes,
          .moved_bytes = counts.remapped_pages * own_device.info().page_bytes};
}

block_index arena_state::search(const pending_request& request) {
  // Merging idle memory into the stream's own makes larger holes, which helps large requests most.
  if (fits.takes_lowest(request.bytes) && !streams.single()) blocks.absorb_idle(request.owner);
  const free_place place = fits.find(blocks, {.owner = request.owner,
                                              .segment_class = request.segment_class,
                                              .bytes = request.bytes,
                                              .alignment = request.alignment});
  if (place.block == no_block) return no_block;
  if (!place.upper_end) return blocks.carve(place.block, request.bytes, request.alignment);
  const block& b = blocks.at(place.block);
  return blocks.carve_at(place.block, b.begin + b.bytes - request.bytes, request.bytes, request.owner);
}

bool arena_state::may_give_back(arena_lock& lock) const {
  if (streams.captures() != 0) return false;
  const bool unnoticed = [&]() GPUMEM_UNDER_LOCK {
    const unlocked_section unlocked{lock};
    return streams.blocking_stream_captures();
  }();
  return !unnoticed && streams.captures() == 0;
}

void arena_state::count_taken(std::uint64_t bytes) noexcept {
  counts.taken_bytes += bytes;
  counts.peak_reserved_bytes = std::max(counts.peak_reserved_bytes, pool_budget.reserved());
}

}  // namespace gpumem
