// Requests and frees: the arena serves those that the caches do not.
#include "pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trace_row.hpp"

namespace gpumem {

pool::pool(device& device, pool_config config, std::unique_ptr<policy> policy)
    : config_{std::move(config)},
      device_{device},
      cache_{device,
             *this,
             {.enabled = config_.thread_cache,
              // A trace observes frees in order, so with one every free takes the lock.
              .without_lock = !config_.before_free,
              .place = {config_.before_free ? 0
                                            : config_.allocator_number | (config_.history_events != 0 ? noted_hits : 0),
                        config_.ordinal},
              .history_events = config_.history_events},
             [this](thread_cache& c) { thread_ends(c); }},
      arena_{device, config_, *this, std::move(policy)},
      no_report_{errc::out_of_memory,
                 fmt::format("out of memory on pool {} ({}); the host has no memory for the report", config_.name,
                             config_.policy_name)} {}

pool::~pool() {
  cache_.close();
  const bool usable = device_.condition() == device_condition::usable;
  if (usable && arena_.context_ordered_frees().owner() != idle_owner)
    cache_.reclaim_all();  // deferred frees hold fences of the device
}

bool pool::free_to_cache(address pointer, const free_args& stated) noexcept {
  if (!stated.stream) return cache_.free_by_key(pointer, std::nullopt, stated);
  const stream_order& streams = arena_.streams();
  if (streams.has_lasting_handle(*stated.stream)) return cache_.free_by_handle(pointer, stated);
  return streams.key_is_known(*stated.stream) && cache_.free_by_key(pointer, streams.known_key(*stated.stream), stated);
}

// Under `query` these frees take the lock: the fence would invalidate a capture that gpumem has not noticed.
bool pool::free_behind_all_work(address pointer) noexcept {
  if (arena_.context_ordered_frees().owner() == idle_owner || config_.stream_ids != stream_id_mode::notify)
    return false;
  if (device_.condition() != device_condition::usable) return false;
  const block_cache::deferred how = cache_.defer_free(pointer);
  if (how != block_cache::deferred::fence_due) return how == block_cache::deferred::taken;
  // During a capture there is no fence; one is recorded when memory is wanted.
  const std::optional<fence> recorded = arena_.context_ordered_frees().record();
  if (recorded && !cache_.attach_fence(*recorded)) device_.drop(*recorded);
  return true;
}

// Counts a context-ordered free made under the lock. Records a fence behind as many of these as make a deferred batch.
void pool::fence_all_work(arena_lock& lock, std::uint64_t bytes) {
  unfenced_.bytes += bytes;
  if (++unfenced_.frees < deferred_frees::frees_a_fence && unfenced_.bytes < deferred_frees::bytes_a_fence) return;
  if (arena_.context_ordered_frees().cover(lock)) unfenced_ = {};
}

class_usage pool::usage_of(unsigned segment_class) const noexcept {
  const heap& blocks = arena_.blocks();
  return {.bytes = blocks.segment_bytes(segment_class),
          .free_bytes = blocks.free_bytes(segment_class),
          .paged = arena_.paged()};
}

void pool::thread_ends(thread_cache& cache) {
  if (device_.condition() == device_condition::forked) return;
  const arena_lock lock{arena_.mutex()};
  statistics& counts = arena_.counts();
  ++counts.locks;
  cache_.end(cache, &counts.allocations, &counts.frees, &counts.requested_bytes);
}

// True if the owner word has room for everything known of the block, so that a cache may take it.
bool pool::is_plain(owner_id owner, std::uint64_t bytes) const noexcept {
  return owner <= owner_word::most_owner && !arena_.streams()[owner].is_graph &&
         bytes <= bin_index::most_units * block_granularity;
}

bool pool::cacheable(owner_id owner, std::uint64_t bytes) const noexcept {
  const stream_slot& slot = arena_.streams()[owner];
  return is_plain(owner, bytes) && !arena_.streams().fences_paused() && !slot.capturing && !slot.ended &&
         owner != arena_.context_ordered_frees().owner();
}

status pool::open_ahead() {
  arena_lock lock{arena_.mutex()};
  ++arena_.counts().locks;
  return arena_.open(lock);
}

status pool::allocate(const request& request, std::uint64_t rounded, address* begin, oom_slot* refusal) {
  const bool aligned = request.alignment <= block_granularity;
  const stream_order& streams = arena_.streams();
  std::uint64_t key = 0;
  if (streams.key_is_known(request.stream)) {
    key = streams.known_key(request.stream);
  } else {
    const result<std::uint64_t> asked = streams.key_of(request.stream);
    if (!asked) return asked.why();
    key = *asked;
    if (aligned && request.region == 0 && (*begin = cache_.allocate_by_key(key, request.bytes)) != 0) return {};
  }
  arena_lock lock{arena_.mutex()};
  ++arena_.counts().locks;
  thread_cache* const mine = cache_.mine();
  result<pending_request> pending = arena_.prepare(request, rounded, key);
  if (!pending) return pending.why();
  if (mine != nullptr) {
    cache_.flush_deferred(*mine);
    if (aligned && cacheable(pending->owner, rounded)) {
      *begin = cache_.refill(*mine, stream_of(pending->owner), rounded, request.bytes);
      if (*begin != 0) {
        note(mine, event_kind::allocated, *begin, request.bytes, request.stream);
        return {};
      }
    }
  }
  cache_.return_pair(mine);
  cache_.served_below(rounded);
  const result<block_index> i = arena_.allocate(lock, *pending);
  if (!i) return i.why();
  if (*i == no_block) return out_of_memory(lock, request, *pending, refusal);
  *begin = hand_out(*i, pending->owner, request.bytes);
  note(mine, event_kind::allocated, *begin, request.bytes, request.stream);
  return {};
}

status pool::out_of_memory(arena_lock& lock, const request& request, const pending_request& pending,
                           oom_slot* refusal) {
  ++arena_.counts().out_of_memory;
  try {
    oom_report local;
    local.requested_bytes = request.bytes;
    arena_.explain(pending, &local);
    {
      const auto stopped = cache_.stop();
      local.pool_statistics = stats_of_stopped();
    }
    arena_.ask_device(lock, &local);
    const std::uint64_t now_ns = flight_time_ns();
    for (const flight_event& each : arena_.flight().latest(oom_report::most_events)) {
      local.recent_events.push_back(to_string(each, now_ns));
    }
    arena_.note(slow_event::request_refused, pending.bytes);
    note(cache_.mine(), event_kind::refused, reachable_bytes(local), std::min(request.bytes, most_recorded_bytes),
         request.stream);
    status failed{errc::out_of_memory, local.headline()};
    if (refusal != nullptr) *refusal = std::make_unique<oom_report>(std::move(local));
    return failed;
  } catch (const std::bad_alloc&) {
    return no_report_;
  }
}

address pool::hand_out(block_index index, owner_id owner, std::uint64_t requested_bytes) {
  const block& b = arena_.blocks().at(index);
  const owner_word word = is_plain(owner, b.bytes) ? owner_word::plain(b.bytes, requested_bytes, owner)
                                                   : owner_word::needs_lock(b.bytes - requested_bytes);
  try {
    cache_.insert(b.begin, index, word);
  } catch (const std::bad_alloc&) {  // the block was never handed out
    arena_.transfer_ownership(index, owner);
    arena_.free_block(index, owner);
    throw;
  }
  ++arena_.counts().allocations;
  arena_.counts().requested_bytes += requested_bytes;
  cache_.note_live();
  return b.begin;
}

// Explains why `pointer` is not a live block.
status pool::why_not_live(address pointer, const pointer_map::lookup& seen) const {
  const bool cached = seen.word().held_by() == holder::cache;
  const block_index index = cached ? cache_.pointers().block_of(seen.index) : arena_.blocks().containing(pointer);
  if (index == no_block)
    return {errc::unknown_pointer, fmt::format("{:#x} is not a block of pool {}", pointer, config_.name)};
  const block& b = arena_.blocks().at(index);
  if (b.state != block_state::live || held_as(index).held_by() == holder::cache) {
    return {errc::double_free, fmt::format("{:#x} in pool {} is free already: a second free?", pointer, config_.name)};
  }
  return {errc::unknown_pointer,
          fmt::format("{:#x} lies inside a block of pool {}, which begins at {:#x}", pointer, config_.name, b.begin)};
}

status pool::refuse_free(address pointer, const pointer_map::lookup& seen) {
  status why = why_not_live(pointer, seen);
  if (why.code() == errc::double_free) ++arena_.counts().misuses;
  return why;
}

cached_stream pool::stream_of(owner_id owner) const noexcept {
  const stream_slot& slot = arena_.streams()[owner];
  return {owner, slot.key, slot.stream};
}

// The driver leaves a query of a destroyed handle undefined, and a free often names a stream that has ended. So the
// handle is looked up first: in the block's own slot, then among the known streams, and not at all for another pool's
// block. A reused handle then means the former stream, and the block waits for a fence.
result<std::uint64_t> pool::key_of_stated(address pointer, stream_ref stream) {
  const stream_order& streams = arena_.streams();
  if (streams.has_lasting_handle(stream)) {
    const arena_lock lock{arena_.mutex()};
    const pointer_map::lookup seen = cache_.pointers().find(pointer);
    if (seen.word().held_by() != holder::program) return refuse_free(pointer, seen);
    const stream_slot& own = streams[arena_.blocks().at(cache_.pointers().block_of(seen.index)).owner];
    if (own.stream == stream) return own.is_graph ? own.origin_key : own.key;
    if (const std::optional<std::uint64_t> known = streams.key_of_handle(stream)) return *known;
  }
  return streams.key_of(stream);
}

status pool::release_block(address pointer, const free_args& stated) {
  const stream_order& streams = arena_.streams();
  std::uint64_t key = 0;
  if (stated.stream) {
    const result<std::uint64_t> k = key_of_stated(pointer, *stated.stream);
    if (!k) return k.why();
    key = *k;
    const bool was_tried = streams.key_is_known(*stated.stream) || streams.has_lasting_handle(*stated.stream);
    if (!was_tried && cache_.free_by_key(pointer, key, stated)) return {};
  }
  arena_lock lock{arena_.mutex()};
  statistics& counts = arena_.counts();
  ++counts.locks;
  const pointer_map::lookup seen = cache_.pointers().find(pointer);
  const owner_word held = seen.word();
  if (held.held_by() != holder::program) return refuse_free(pointer, seen);
  const block_index i = cache_.pointers().block_of(seen.index);
  const block& b = arena_.blocks().at(i);
  const std::uint64_t requested = b.bytes - held.slack_bytes();
  if (stated.bytes && *stated.bytes != requested) {
    ++counts.misuses;
    return {errc::wrong_size,
            fmt::format("{:#x} was allocated with {} bytes and is freed with {}", pointer, requested, *stated.bytes)};
  }
  thread_cache* const mine = cache_.mine();  // not earlier: a refused free changes nothing
  cache_.return_pair(mine);
  // Naming a new stream takes host memory; if there is none, the block stays live.
  const owner_id owner = arena_.owner_of_free(i, stated.stream ? &*stated.stream : nullptr, key);
  if (!seen.slot->change(held, held.cached())) {  // another thread is freeing it
    ++counts.misuses;
    return {errc::double_free, fmt::format("{:#x} in pool {} is free already: a second free?", pointer, config_.name)};
  }
  // From here on no step needs host memory that it cannot do without.
  if (config_.before_free) config_.before_free(pointer, requested, streams[owner].stream);
  note(mine, event_kind::freed, pointer, requested, streams[owner].stream);
  ++counts.frees;
  counts.requested_bytes -= requested;
  arena_.transfer_ownership(i, owner);
  if (arena_.has_uses(i)) {
    cache_.pointers().erase(seen.index);
    arena_.free_behind_uses(lock, i, owner);
  } else {
    const bool kept = mine != nullptr && cacheable(owner, b.bytes) &&
                      cache_.keep(*mine, seen.index, stream_of(owner), b.bytes, b.segment_class);
    if (!kept) cache_.return_block(seen.index, owner);
  }
  if (owner == arena_.context_ordered_frees().owner()) {
    fence_all_work(lock, requested);
  } else if (stated.stream) {
    arena_.stream_named(lock, owner, key, false);
  }
  return {};
}

status pool::record_use(address pointer, stream_ref stream) {
  const result<std::uint64_t> key = key_of(stream);
  if (!key) return key.why();
  arena_lock lock{arena_.mutex()};
  ++arena_.counts().locks;
  pointer_map::lookup seen = cache_.pointers().find(pointer);
  if (seen.word().held_by() == holder::nobody) {  // may point inside a block
    const block_index around = arena_.blocks().containing(pointer);
    if (around != no_block) seen = cache_.pointers().find(arena_.blocks().at(around).begin);
  }
  owner_word held = seen.word();
  if (held.held_by() != holder::program) return not_in_live_block(pointer);
  const block_index i = cache_.pointers().block_of(seen.index);
  const owner_id user = arena_.prepare_use(i, stream, *key);
  if (user == idle_owner) return {};
  // From now on its free takes the lock, unless one is under way already.
  while (held.plainly_live() && !seen.slot->change(held, held.marked_needs_lock())) held = seen.slot->read();
  if (held.held_by() != holder::program) return not_in_live_block(pointer);
  arena_.add_use(i, user);
  arena_.stream_named(lock, user, *key, true);
  return {};
}

trim_result pool::trim(std::uint64_t bytes) {
  arena_lock lock{arena_.mutex()};
  ++arena_.counts().locks;
  return arena_.trim(lock, bytes);
}

void pool::set_limit(std::uint64_t limit_bytes) {
  const arena_lock lock{arena_.mutex()};
  arena_.pool_budget().set_limit(limit_bytes);
  arena_.note(slow_event::limit_set, limit_bytes);
  arena_.mutex().begin_generation();  // a request that waits may fit now
}

limit_result pool::keep_limit(std::uint64_t limit_bytes) {
  limit_result outcome;
  const std::uint64_t held = arena_.pool_budget().reserved();
  if (held > limit_bytes) outcome.trimmed = trim(held - limit_bytes);
  const arena_lock lock{arena_.mutex()};
  outcome.limit_bytes = limit_bytes;
  outcome.reserved_bytes = arena_.pool_budget().reserved();
  outcome.over_bytes = outcome.reserved_bytes > limit_bytes ? outcome.reserved_bytes - limit_bytes : 0;
  const auto stopped = cache_.stop();
  outcome.live_bytes = stats_of_stopped().live_bytes;
  return outcome;
}

}  // namespace gpumem
