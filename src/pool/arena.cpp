// Requests and frees under the lock. Makes no driver call that can block, except through its parts.
#include "arena.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "log.hpp"

namespace gpumem {
namespace {

/// Requests of this size and more free the blocks that other streams have finished with, even where other free memory
/// would serve. What is free then depends on the device's work, and less on which requests found nothing. Otherwise
/// each repetition of a step would place its blocks elsewhere, and sooner or later one of the placements needs more
/// memory.
constexpr std::uint64_t least_polling_bytes = mib;
/// Bounds how many blocks whose work is not done one such request asks for.
constexpr std::size_t most_polled_in_vain = 64;

}  // namespace

arena::arena(device& device, pool_config config, std::unique_ptr<policy> policy)
    : state{device, std::move(config), *this, std::move(policy)},
      fences{state},
      context_frees{state, fences},
      paging{state, fences},
      growing{state, paging},
      trimming{state, fences, paging},
      merging{state, fences, growing, trimming},
      ladder{state, fences, growing, trimming, merging},
      planning{state, fences, growing, ladder},
      no_report_{errc::out_of_memory,
                 fmt::format("out of memory on pool {} ({}); the host has no memory for the report", state.config.name,
                             state.config.policy_name)} {
  if (planning.follows()) state.streams.keep_idle_apart();
  state.set_rules(device.info().page_bytes != 0 ? state.pool_policy.pages(state.view()) : page_rules{});
}

arena::~arena() {
  state.caches.close();
  if (state.own_device.condition() != device_condition::usable)
    return;  // the device is gone, or its memory belongs to the parent process
  if (context_frees.owner() != idle_owner) state.caches.reclaim_all();  // deferred frees hold fences of the device
  state.pages.return_everything();
  for (const heap_segment& s : state.blocks.segments()) {
    if (s.bytes == 0) continue;
    if (const status ok = s.paged ? state.own_device.release_range(s.begin, s.bytes) : state.own_device.free(s.begin);
        !ok) {
      log_if_possible([&] {
        return fmt::format("pool {}: a segment of {} stays with the driver: {}", state.config.name,
                           format_bytes(s.bytes), ok.message());
      });
    }
  }
}

status arena::open(arena_lock& lock) {
  if (growing.opened()) return {};
  pending_request nobodys;
  growing.open(lock, nobodys);
  return std::move(nobodys.driver_error);
}

result<pending_request> arena::prepare(const request& request, std::uint64_t rounded, std::uint64_t stream_key) {
  const owner_id stream = state.streams.slot_of(request.stream, stream_key);
  const stream_slot& asks = state.streams[stream];
  pending_request pending;
  pending.stream = stream;
  pending.capturing = asks.capturing();
  pending.owner = request.region != 0 ? state.graphs.find(request.region) : pending.capturing ? asks.graph : stream;
  if (pending.owner == idle_owner) {
    return status{errc::invalid_argument,
                  fmt::format("region {} of pool {} is not open", request.region, state.config.name)};
  }
  // A region reuses freed memory at once, which is safe only for work on its own stream.
  if (const stream_slot& region = state.streams[pending.owner];
      request.region != 0 && !state.graphs.is_region_of(pending.owner, request.stream, stream_key)) {
    return status{
        errc::invalid_argument,
        fmt::format("region {} of pool {} is asked on stream {}; expected {}, for which it was opened", request.region,
                    state.config.name, fmt::ptr(request.stream.handle), fmt::ptr(region.stream.handle))};
  }
  pending.bytes = rounded;
  pending.alignment = std::max<std::uint64_t>(request.alignment, block_granularity);
  pending.apart = state.rules.streams_apart;
  pending.any_range = pending.apart && state.config.reuse != stream_reuse::poll;
  pending.segment_class =
      pending.apart ? unsigned{pending.owner != first_owner} : state.pool_policy.segment_class(rounded);
  pending.place = request.place;
  pending.stream_key = stream_key;
  return pending;
}

result<block_index> arena::allocate(arena_lock& lock, pending_request& request) {
  slot_reference kept{state.streams, request.owner};  // while the lock is released; then it is the block's reference
  stream_named(lock, request.stream, request.stream_key, true);
  block_index i = no_block;
  if (request.place != 0) {
    i = place_in_region(request);
    if (i == no_block) {
      return status{errc::unsupported,
                    fmt::format("{} at {:#x} are not free in region {} of pool {}", format_bytes(request.bytes),
                                request.place, state.streams[request.owner].key, state.config.name)};
    }
  } else {
    if (planning.follows()) i = planning.place(lock, request);
    const bool of_step = i == no_block && request.apart && request.bytes >= step_places::least_bytes;
    const std::uint64_t name = of_step ? places_.name(request.bytes, state.caches.program_repeats()) : 0;
    if (i == no_block && growing.opened()) {
      if (request.bytes >= least_polling_bytes && !state.uses.waiting().empty()) fences.poll(lock, most_polled_in_vain);
      if (of_step) i = take_place(request, places_.place_of(name));
      if (i == no_block) i = state.search(request);
    }
    if (i == no_block) i = planning.follows() ? planning.climb(lock, request) : ladder.climb(lock, request);
    if (i == no_block) return no_block;
    if (of_step) places_.learn(name, state.blocks.at(i).begin);
  }
  kept.keep();
  state.blocks.pieces().set_owner(i, request.owner);
  const heap_totals& totals = state.blocks.totals();
  state.counts.peak_blocks = std::max(state.counts.peak_blocks, totals.live_blocks + totals.free_blocks);
  return i;
}

// Carves the block at `request.place` if memory of the region or idle memory covers it. Only the region reuses its
// memory.
block_index arena::place_in_region(const pending_request& request) {
  const block_index first = state.blocks.containing(request.place);
  for (block_index i = first; i != no_block && state.blocks.at(i).state == block_state::free;
       i = state.blocks.at(i).next) {
    const block& b = state.blocks.at(i);
    if (b.owner != request.owner && b.owner != idle_owner) break;
    if (b.begin + b.bytes >= request.place + request.bytes)
      return state.blocks.carve_at(first, request.place, request.bytes, request.owner);
  }
  return no_block;
}

block_index arena::take_place(const pending_request& request, address place) {
  if (place == 0 || place % request.alignment != 0) return no_block;
  block_index found = state.blocks.free_blocks().covering(request.owner, place, request.bytes);
  if (found == no_block) found = state.blocks.free_blocks().covering(idle_owner, place, request.bytes);
  return found == no_block ? no_block : state.blocks.carve_at(found, place, request.bytes, request.owner);
}

owner_id arena::owner_of_free(block_index index, const stream_ref* stream, std::uint64_t key) {
  const owner_id owner = state.blocks.at(index).owner;
  if (stream == nullptr) return owner;
  return state.streams[owner].is_graph() ? state.graphs.owner_of_free(owner, key)
                                         : state.streams.owner_of_free(owner, *stream, key);
}

void arena::transfer_ownership(block_index index, owner_id owner) {
  planning.freed(index, owner);
  const owner_id former = state.blocks.at(index).owner;
  if (owner == former) return;
  ++state.streams[owner].references;
  --state.streams[former].references;
  state.blocks.pieces().set_owner(index, owner);
}

void arena::free_block(block_index index, owner_id owner) noexcept {
  state.streams.free_block(index, owner);
  state.mutex.begin_generation();
}

void arena::stream_named(arena_lock& lock, owner_id stream, std::uint64_t key, bool was_asked) {
  if (state.streams[stream].key != key) return;  // its slot was reused while the lock was released
  state.streams.fence_named(stream, was_asked);
  fences.record(lock);
}

void arena::free_behind_uses(arena_lock& lock, block_index index, owner_id owner) {
  state.uses.free(index, owner);
  state.mutex.begin_generation();
  fences.record(lock);
}

owner_id arena::prepare_use(block_index index, stream_ref stream, std::uint64_t key) {
  const owner_id user = state.streams.slot_of(stream, key);
  if (user == state.blocks.at(index).owner) return idle_owner;
  state.uses.make_room();
  return user;
}

class_usage arena::usage_of(unsigned segment_class) const noexcept {
  return {.bytes = state.blocks.totals(segment_class).segment_bytes,
          .free_bytes = state.blocks.totals(segment_class).free_bytes,
          .paged = state.paged()};
}

void arena::free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept {
  const owner_id owner = context_frees.begin_batch(batch_fence);
  for (const block_index i : blocks) {
    transfer_ownership(i, owner);
    free_block(i, owner);
  }
  context_frees.end_batch(owner);
}

}  // namespace gpumem
