#include "arena_state.hpp"

#include <algorithm>

namespace gpumem {

namespace {

block_cache::options options_of(const pool_config& config) {
  const std::uint64_t number = config.allocator_number | (config.history_events != 0 ? noted_hits : 0);
  return {.enabled = config.thread_cache,
          // A trace observes frees in order, so with one every free takes the lock.
          .without_lock = !config.before_free,
          .place = {config.before_free ? 0 : number, config.ordinal},
          .history_events = config.history_events};
}

}  // namespace

arena_state::arena_state(device& device, pool_config configuration, cache_source& source,
                         std::unique_ptr<policy> policy)
    : config{std::move(configuration)},
      own_device{device},
      caches{device, source, options_of(config), [this](thread_cache& cache) { thread_ends(cache); }},
      observers{config.ordinal},
      pool_budget{config.limit_bytes, config.group},
      pool_policy{std::move(policy), config.policy_name},
      blocks{pool_policy.segment_classes()},
      streams{device, blocks, config.stream_ids},
      uses{blocks, streams, config.name},
      pages{blocks, device, config.name} {
  mutex.keep_for_holder(streams.captures().context_event_permits());
}

void arena_state::thread_ends(thread_cache& cache) {
  if (own_device.condition() == device_condition::forked) return;
  const arena_lock lock{mutex};
  ++counts.locks;
  caches.end(cache, &counts.allocations, &counts.frees, &counts.requested_bytes);
}

pool_view arena_state::view() const {
  return {.total_bytes = config.total_bytes,
          .free_at_start_bytes = config.free_at_start_bytes,
          .limit_bytes = pool_budget.limit(),
          .reserved_bytes = pool_budget.reserved(),
          .live_bytes = caches.live_bytes(),
          .peak_live_bytes = caches.peak_live_bytes(),
          .granularity_bytes = own_device.info().granularity_bytes,
          .moved_bytes = counts.remapped_pages * own_device.info().page_bytes + pages.replaced_bytes(),
          .repeats = caches.program_repeats()};
}

block_index arena_state::search(const pending_request& request) {
  // A step that repeats has found its places, those of large requests, too. Places that changed would need memory.
  if (fits.keeps_segments_whole && caches.program_repeats()) fits.keeps_segments_whole = false;
  const auto take = [&](unsigned segment_class, idle_memory idle) GPUMEM_UNDER_LOCK {
    return fits.take(blocks, {.owner = request.owner,
                              .segment_class = segment_class,
                              .bytes = request.bytes,
                              .alignment = request.alignment,
                              .idle = idle,
                              .may_divide = may_divide(request)});
  };
  const idle_memory idle = streams.single() ? idle_memory::alike
                           : fits.idle_last ? idle_memory::last
                                            : idle_memory::joined;
  const block_index found = take(request.segment_class, idle);
  if (found != no_block || !rules.streams_apart) return found;
  return take(1 - request.segment_class, request.any_range ? idle : idle_memory::none);
}

// A pool that is full is not made to ask the driver again at each request.
bool arena_state::may_divide(const pending_request& request) const {
  return request.may_divide || pool_budget.is_full();
}

bool arena_state::keeps_whole(const pending_request& request) const {
  return fits.keeps_segments_whole && !may_divide(request) &&
         blocks.free_blocks().best_fit(request.segment_class, request.owner, true, request.bytes, request.alignment) !=
             no_block;
}

bool arena_state::may_give_back(arena_lock& lock) const {
  if (streams.captures().local() != 0) return false;
  const bool unnoticed = [&]() GPUMEM_UNDER_LOCK {
    const unlocked_section unlocked{lock};
    return streams.keys().blocking_stream_captures();
  }();
  return !unnoticed && streams.captures().local() == 0;
}

void arena_state::count_taken(std::uint64_t bytes) noexcept {
  counts.taken_bytes += bytes;
  counts.peak_reserved_bytes = std::max(counts.peak_reserved_bytes, pool_budget.reserved());
}

}  // namespace gpumem
