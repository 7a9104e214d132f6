// Requests and frees: the arena serves those that the caches do not.
#include "pool.hpp"

#include <fmt/format.h>

#include "arena.hpp"
#include "assign_or_return.hpp"

namespace gpumem {
namespace {

/// True if the owner word has room for everything known of such a block, so that a cache may take it.
bool fits_owner_word(const stream_order& streams, owner_id owner, std::uint64_t bytes) noexcept {
  return owner <= owner_word::most_owner && !streams[owner].is_graph() &&
         bytes <= bin_index::most_units * block_granularity;
}

/// True if a cache may hold the owner's blocks of that size.
bool is_cacheable(const arena& pool_arena, owner_id owner, std::uint64_t bytes) noexcept GPUMEM_UNDER_LOCK {
  const stream_order& streams = pool_arena.state.streams;
  const stream_slot& slot = streams[owner];
  return fits_owner_word(streams, owner, bytes) && !streams.captures().pause_fences() && !slot.capturing() &&
         !slot.ended && owner != pool_arena.context_frees.owner();
}

cached_stream stream_of(const stream_order& streams, owner_id owner) noexcept GPUMEM_UNDER_LOCK {
  return {owner, streams[owner].key, streams[owner].stream};
}

/// Enters a block that leaves the pool in the pointer map, so that a free finds it by its address.
address hand_out(arena& pool_arena, block_index index, owner_id owner, const request& request) GPUMEM_UNDER_LOCK {
  arena_state& state = pool_arena.state;
  const block& b = state.blocks.at(index);
  const owner_word word = fits_owner_word(state.streams, owner, b.bytes)
                              ? owner_word::plain(b.bytes, request.bytes, owner)
                              : owner_word::needs_lock(b.bytes - request.bytes);
  try {
    state.caches.insert(b.begin, index, word);
  } catch (const std::bad_alloc&) {  // the block was never handed out
    pool_arena.transfer_ownership(index, owner);
    pool_arena.free_block(index, owner);
    throw;
  }
  ++state.counts.allocations;
  state.counts.requested_bytes += request.bytes;
  state.caches.note(event_kind::allocated, b.begin, request.bytes, request.stream);
  return b.begin;
}

}  // namespace

pool::pool(device& device, pool_config config, std::unique_ptr<policy> policy)
    : arena_{std::make_unique<arena>(device, std::move(config), std::move(policy))},
      state_{arena_->state},
      streams_{*arena_} {}

pool::~pool() = default;

const pool_config& pool::config() const noexcept { return state_.config; }

address pool::try_cache(stream_ref stream, std::uint64_t requested) noexcept {
  if (!state_.streams.keys().is_known(stream)) return 0;
  return state_.caches.fast().allocate_by_key(stream_keys::known(stream), requested, stream);
}

bool pool::free_to_cache(address pointer, const free_args& stated) noexcept {
  block_cache& caches = state_.caches;
  if (!stated.stream) return caches.fast().free_by_key(pointer, std::nullopt, stated);
  if (state_.streams.keys().is_created_under_query(*stated.stream))
    return caches.fast().free_by_handle(pointer, stated);
  return state_.streams.keys().is_known(*stated.stream) &&
         caches.fast().free_by_key(pointer, stream_keys::known(*stated.stream), stated);
}

// Under `query` these frees take the lock: the fence would invalidate a capture that gpumem has not noticed.
bool pool::free_behind_all_work(address pointer) noexcept {
  if (arena_->context_frees.owner() == idle_owner || state_.config.stream_ids != stream_id_mode::notify) return false;
  if (state_.own_device.condition() != device_condition::usable) return false;
  const fast_path::deferred how = state_.caches.fast().defer_free(pointer);
  if (how != fast_path::deferred::fence_due) return how == fast_path::deferred::taken;
  // During a capture there is no fence; one is recorded when memory is wanted.
  const std::optional<fence> recorded = arena_->context_frees.record();
  if (recorded && !state_.caches.fast().attach_fence(*recorded)) state_.own_device.drop(*recorded);
  return true;
}

status pool::open_ahead() {
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  return arena_->open(lock);
}

status pool::allocate(const request& request, std::uint64_t rounded, address* begin, oom_slot* refusal,
                      std::optional<std::uint64_t> key) {
  if (!key) {
    ASSIGN_OR_RETURN(key, streams_.key_of(request.stream));
  }
  const bool may_hit = request.alignment <= block_granularity && request.region == 0;
  if (may_hit) {
    // A handle whose key was asked may name another stream later, so the cache does not remember it.
    const bool lasts = state_.streams.keys().is_known(request.stream);
    *begin =
        state_.caches.fast().allocate_by_key(*key, request.bytes, lasts ? std::optional{request.stream} : std::nullopt);
    if (*begin != 0) return {};
  }
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  result<pending_request> pending = arena_->prepare(request, rounded, *key);
  if (!pending) return pending.why();
  std::optional<cached_stream> stream;
  if (may_hit && is_cacheable(*arena_, pending->owner, rounded)) stream = stream_of(state_.streams, pending->owner);
  *begin = state_.caches.refill(stream, rounded, request);
  if (*begin != 0) return {};
  const result<block_index> i = arena_->allocate(lock, *pending);
  if (!i) return i.why();
  if (*i == no_block) return arena_->refuse(lock, request, *pending, refusal);
  *begin = hand_out(*arena_, *i, pending->owner, request);
  arena_->merging.merge(lock, *pending);
  return {};
}

// The driver leaves a query of a destroyed handle undefined, and a free often names a stream that has ended. So the
// handle is looked up first: in the block's own slot, then among the known streams, and not at all for another pool's
// block. A reused handle then means the former stream, and the block waits for a fence.
result<std::uint64_t> pool::key_of_stated(address pointer, stream_ref stream) {
  const stream_order& streams = state_.streams;
  if (streams.keys().is_created_under_query(stream)) {
    const arena_lock lock{state_.mutex};
    const pointer_map::lookup seen = state_.caches.pointers().find(pointer);
    if (seen.word().held_by() != holder::program) return arena_->refuse_free(pointer, seen);
    const stream_slot& own = streams[state_.blocks.at(state_.caches.pointers().block_of(seen.index)).owner];
    if (own.stream == stream) return own.is_graph() ? own.captured.origin_key : own.key;
    if (const std::optional<std::uint64_t> known = streams.slots().key_of_handle(stream)) return *known;
  }
  return streams_.key_of(stream);
}

status pool::release_block(address pointer, const free_args& stated) {
  const stream_order& streams = state_.streams;
  block_cache& caches = state_.caches;
  std::uint64_t key = 0;
  if (stated.stream) {
    const result<std::uint64_t> k = key_of_stated(pointer, *stated.stream);
    if (!k) return k.why();
    key = *k;
    const bool was_tried =
        streams.keys().is_known(*stated.stream) || streams.keys().is_created_under_query(*stated.stream);
    if (!was_tried && caches.fast().free_by_key(pointer, key, stated)) return {};
  }
  arena_lock lock{state_.mutex};
  statistics& counts = state_.counts;
  ++counts.locks;
  const pointer_map::lookup seen = caches.pointers().find(pointer);
  const owner_word held = seen.word();
  if (held.held_by() != holder::program) return arena_->refuse_free(pointer, seen);
  const block_index i = caches.pointers().block_of(seen.index);
  const block& b = state_.blocks.at(i);
  const std::uint64_t requested = b.bytes - held.slack_bytes();
  if (stated.bytes && *stated.bytes != requested) {
    ++counts.misuses;
    return {errc::wrong_size,
            fmt::format("{:#x} was allocated with {} bytes and is freed with {}", pointer, requested, *stated.bytes)};
  }
  thread_cache* const mine = caches.mine();  // after the checks, because a refused free must change nothing
  caches.return_pair(mine);
  // Naming a new stream takes host memory; if there is none, the block stays live.
  const owner_id owner = arena_->owner_of_free(i, stated.stream ? &*stated.stream : nullptr, key);
  if (!seen.slot->change(held, held.cached())) {  // another thread is freeing it
    ++counts.misuses;
    return arena_->freed_twice(pointer);
  }
  // From here on no step needs host memory that it cannot do without.
  if (state_.config.before_free) state_.config.before_free(pointer, requested, streams[owner].stream);
  caches.note(event_kind::freed, pointer, requested, streams[owner].stream);
  ++counts.frees;
  counts.requested_bytes -= requested;
  arena_->transfer_ownership(i, owner);
  if (state_.uses.any(i)) {
    caches.pointers().erase(seen.index);
    arena_->free_behind_uses(lock, i, owner);
  } else {
    const bool kept = mine != nullptr && is_cacheable(*arena_, owner, b.bytes) &&
                      caches.keep(*mine, seen.index, stream_of(streams, owner), b.bytes, b.segment_class);
    if (!kept) caches.return_block(seen.index, owner);
  }
  if (owner == arena_->context_frees.owner()) {
    arena_->context_frees.freed(lock, requested);
  } else if (stated.stream) {
    arena_->stream_named(lock, owner, key, false);
  }
  return {};
}

status pool::record_use(address pointer, stream_ref stream) {
  const result<std::uint64_t> key = streams_.key_of(stream);
  if (!key) return key.why();
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  const pointer_map& pointers = state_.caches.pointers();
  pointer_map::lookup seen = pointers.find(pointer);
  if (seen.word().held_by() == holder::nobody) {  // may point inside a block
    const block_index around = state_.blocks.containing(pointer);
    if (around != no_block) seen = pointers.find(state_.blocks.at(around).begin);
  }
  owner_word held = seen.word();
  if (held.held_by() != holder::program) return arena_->not_in_live_block(pointer);
  const block_index i = pointers.block_of(seen.index);
  const owner_id user = arena_->prepare_use(i, stream, *key);
  if (user == idle_owner) return {};
  // From now on its free takes the lock, unless one is under way already.
  while (held.plainly_live() && !seen.slot->change(held, held.marked_needs_lock())) held = seen.slot->read();
  if (held.held_by() != holder::program) return arena_->not_in_live_block(pointer);
  state_.uses.add(i, user);
  arena_->stream_named(lock, user, *key, true);
  return {};
}

void pool::observe_segments(std::shared_ptr<segment_observer> observer) { state_.observers.add(std::move(observer)); }

void pool::on_out_of_memory(const oom_callback& callback) {
  const arena_lock lock{state_.mutex};
  state_.callbacks.push_back(callback);
}

trim_result pool::trim(std::uint64_t bytes) {
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  return arena_->trimming.trim(lock, bytes);
}

void pool::set_limit(std::uint64_t limit_bytes) {
  const arena_lock lock{state_.mutex};
  state_.pool_budget.set_limit(limit_bytes);
  state_.note(slow_event::limit_set, limit_bytes);
  state_.mutex.begin_generation();  // a request that waits may fit now
}

limit_result pool::trim_to_limit(std::uint64_t limit_bytes) {
  limit_result outcome;
  const std::uint64_t held = state_.pool_budget.reserved();
  if (held > limit_bytes) outcome.trimmed = trim(held - limit_bytes);
  const arena_lock lock{state_.mutex};
  outcome.limit_bytes = limit_bytes;
  outcome.reserved_bytes = state_.pool_budget.reserved();
  outcome.over_bytes = outcome.reserved_bytes > limit_bytes ? outcome.reserved_bytes - limit_bytes : 0;
  const auto stopped = state_.caches.stop();
  outcome.live_bytes = arena_->figures().live_bytes;
  return outcome;
}

std::uint64_t pool::limit_bytes() const noexcept { return state_.pool_budget.limit(); }

}  // namespace gpumem
