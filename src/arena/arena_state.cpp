#include "arena_state.hpp"

#include <algorithm>

namespace gpumem {

arena_state::arena_state(device& device, const arena_config& with, caches_above& above, std::unique_ptr<policy> policy,
                         arena_mutex& guard)
    : config{with},
      mutex{guard},
      on{device},
      caches{above},
      observers{with.ordinal},
      cap{with.limit_bytes, with.group},
      decides{std::move(policy), with.policy_name},
      blocks{decides.segment_classes()},
      streams{device, blocks, with.stream_ids},
      uses{blocks, streams, with.name},
      pages{blocks, device, with.name} {
  mutex.keep_for_holder(streams.context_event_permits());
}

pool_view arena_state::view() const {
  return {.total_bytes = config.total_bytes,
          .free_at_start_bytes = config.free_at_start_bytes,
          .limit_bytes = cap.limit(),
          .reserved_bytes = cap.reserved(),
          .live_bytes = caches.live_bytes(),
          .peak_live_bytes = caches.peak_live_bytes(),
          .granularity_bytes = on.info().granularity_bytes,
          .moved_bytes = counts.remapped_pages * on.info().page_bytes};
}

block_index arena_state::search(const pending_request& w) {
  // Idle memory beside the stream's own makes one hole with it, which is worth most where holes are large.
  if (fits.takes_lowest(w.bytes) && !streams.single()) blocks.absorb_idle(w.owner);
  const free_place at =
      fits.find(blocks, {.owner = w.owner, .klass = w.klass, .bytes = w.bytes, .alignment = w.alignment});
  if (at.from == no_block) return no_block;
  if (!at.upper_end) return blocks.carve(at.from, w.bytes, w.alignment);
  const block& b = blocks.at(at.from);
  return blocks.carve_at(at.from, b.begin + b.bytes - w.bytes, w.bytes, w.owner);
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
  counts.peak_reserved_bytes = std::max(counts.peak_reserved_bytes, cap.reserved());
}

}  // namespace gpumem
