// Request, stream and capture functions of the arena. They make no driver call that can block, except through its
// parts.
#include "arena.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "log.hpp"
#include "oom_diagnosis.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

arena::arena(device& device, arena_config config, cache_client& client, std::unique_ptr<policy> policy)
    : config_{std::move(config)},
      state_{device, config_, client, std::move(policy), mutex_},
      fences_{state_},
      context_order_{state_, fences_},
      pager_{state_, fences_},
      growth_{state_, pager_},
      trimmer_{state_, fences_, pager_},
      ladder_{state_, fences_, growth_, trimmer_},
      plan_executor_{state_, fences_, growth_, ladder_} {
  if (plan_executor_.follows()) state_.streams.keep_idle_apart();
  if (device.info().page_bytes != 0) state_.rules = state_.pool_policy.pages(state_.view());
  state_.fits = best_fit{state_.rules};
}

arena::~arena() {
  if (state_.own_device.condition() != device_condition::usable)
    return;  // the device is gone, or its memory belongs to the parent process
  state_.pages.return_everything();
  for (const heap_segment& s : state_.blocks.segments()) {
    if (s.bytes == 0) continue;
    if (const status ok = s.paged ? state_.own_device.release_range(s.begin, s.bytes) : state_.own_device.free(s.begin);
        !ok) {
      log_if_possible([&] {
        return fmt::format("pool {}: a segment of {} stays with the driver: {}", config_.name, format_bytes(s.bytes),
                           ok.message());
      });
    }
  }
}

status arena::open(arena_lock& lock) {
  if (growth_.opened()) return {};
  pending_request nobodys;
  growth_.open(lock, nobodys);
  return std::move(nobodys.driver_error);
}

result<pending_request> arena::prepare(const request& request, std::uint64_t rounded, std::uint64_t stream_key) {
  const owner_id stream = state_.streams.slot_of(request.stream, stream_key);
  const stream_slot& asks = state_.streams[stream];
  pending_request pending;
  pending.stream = stream;
  pending.capturing = asks.capturing;
  pending.owner = request.region != 0 ? state_.streams.region(request.region) : pending.capturing ? asks.graph : stream;
  if (pending.owner == idle_owner) {
    return status{errc::invalid_argument,
                  fmt::format("region {} of pool {} is not open", request.region, config_.name)};
  }
  // A region reuses freed memory at once, which is safe only for work on its own stream.
  if (const stream_slot& region = state_.streams[pending.owner];
      request.region != 0 && region.origin_key != stream_key) {
    return status{
        errc::invalid_argument,
        fmt::format("region {} of pool {} is asked on stream {}; expected {}, for which it was opened", request.region,
                    config_.name, fmt::ptr(request.stream.handle), fmt::ptr(region.stream.handle))};
  }
  pending.bytes = rounded;
  pending.alignment = std::max<std::uint64_t>(request.alignment, block_granularity);
  pending.segment_class = state_.pool_policy.segment_class(rounded);
  pending.place = request.place;
  pending.stream_key = stream_key;
  return pending;
}

result<block_index> arena::allocate(arena_lock& lock, pending_request& request) {
  slot_reference kept{state_.streams, request.owner};  // while the lock is released; then it is the block's reference
  stream_named(lock, request.stream, request.stream_key, true);
  block_index i = no_block;
  if (request.place != 0) {
    i = place_in_region(request);
    if (i == no_block) {
      return status{errc::unsupported,
                    fmt::format("{} at {:#x} are not free in region {} of pool {}", format_bytes(request.bytes),
                                request.place, state_.streams[request.owner].key, config_.name)};
    }
  } else {
    if (plan_executor_.follows()) i = plan_executor_.place(lock, request);
    if (i == no_block && growth_.opened()) i = state_.search(request);
    if (i == no_block)
      i = plan_executor_.follows() ? plan_executor_.climb(lock, request) : ladder_.climb(lock, request);
    if (i == no_block) return no_block;
  }
  kept.keep();
  state_.blocks.pieces().set_owner(i, request.owner);
  const heap_totals& totals = state_.blocks.totals();
  state_.counts.peak_blocks = std::max(state_.counts.peak_blocks, totals.live_blocks + totals.free_blocks);
  return i;
}

// Carves the block at `request.place` if memory of the region or idle memory covers it. Only the region reuses its
// memory.
block_index arena::place_in_region(const pending_request& request) {
  const block_index first = state_.blocks.containing(request.place);
  for (block_index i = first; i != no_block && state_.blocks.at(i).state == block_state::free;
       i = state_.blocks.at(i).next) {
    const block& b = state_.blocks.at(i);
    if (b.owner != request.owner && b.owner != idle_owner) break;
    if (b.begin + b.bytes >= request.place + request.bytes)
      return state_.blocks.carve_at(first, request.place, request.bytes, request.owner);
  }
  return no_block;
}

owner_id arena::owner_of_free(block_index index, const stream_ref* stream, std::uint64_t key) {
  const owner_id owner = state_.blocks.at(index).owner;
  if (stream == nullptr) return owner;
  return state_.streams[owner].is_graph ? state_.streams.graph_owner_of_free(owner, key)
                                        : state_.streams.owner_of_free(owner, *stream, key);
}

void arena::transfer_ownership(block_index index, owner_id owner) {
  plan_executor_.freed(index, owner);
  const owner_id former = state_.blocks.at(index).owner;
  if (owner == former) return;
  ++state_.streams[owner].references;
  --state_.streams[former].references;
  state_.blocks.pieces().set_owner(index, owner);
}

void arena::free_block(block_index index, owner_id owner) noexcept {
  state_.streams.free_block(index, owner);
  mutex_.begin_generation();
}

void arena::stream_named(arena_lock& lock, owner_id stream, std::uint64_t key, bool was_asked) {
  if (state_.streams[stream].key != key) return;  // its slot was reused while the lock was released
  state_.streams.fence_named(stream, was_asked);
  fences_.record(lock);
}

void arena::free_behind_uses(arena_lock& lock, block_index index, owner_id owner) {
  state_.uses.free(index, owner);
  mutex_.begin_generation();
  fences_.record(lock);
}

owner_id arena::prepare_use(block_index index, stream_ref stream, std::uint64_t key) {
  const owner_id user = state_.streams.slot_of(stream, key);
  if (user == state_.blocks.at(index).owner) return idle_owner;
  state_.uses.make_room();
  return user;
}

void arena::free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept {
  const owner_id owner = context_order_.begin_batch(batch_fence);
  for (const block_index i : blocks) {
    transfer_ownership(i, owner);
    free_block(i, owner);
  }
  context_order_.end_batch(owner);
}

status arena::stream_release(std::uint64_t key) {
  arena_lock lock{mutex_};
  ++state_.counts.locks;
  const std::optional<owner_id> o = state_.streams.find(key);
  if (!o) return {};
  if (state_.streams[*o].capturing) {
    return {errc::invalid_argument, "a stream that is capturing cannot be released; end the capture first"};
  }
  state_.caches.reclaim(*o);
  state_.streams.end_stream(*o);
  fences_.record(lock);
  wait_for_handle_calls(lock, *o, key);  // the program destroys the handle next
  return {};
}

// Waits for threads that record fences on the stream's handle. No record begins once the stream ends or captures.
void arena::wait_for_handle_calls(arena_lock& lock, owner_id stream, std::uint64_t key) {
  while (state_.streams[stream].key == key && state_.streams[stream].handle_calls != 0) {
    lock.wait_for_generation(mutex_.generation(), std::nullopt);
  }
}

void arena::poll() {
  arena_lock lock{mutex_};
  ++state_.counts.locks;
  fences_.poll(lock);
}

result<pool_capture> arena::capture_begin(stream_ref capture_stream, std::uint64_t key, capture_effect effect) {
  const arena_lock lock{mutex_};
  ++state_.counts.locks;
  state_.caches.reclaim(idle_owner);  // frees of this stream's blocks take the lock from now on
  const owner_id stream = state_.streams.slot_of(capture_stream, key);
  if (const result<owner_id> graph = state_.streams.capture_begin(stream); !graph) return graph.why();
  begin_effect(effect);
  return pool_capture{*this, stream, effect};
}

pool_capture arena::capture_elsewhere(capture_effect effect) {
  {
    const arena_lock lock{mutex_};
    ++state_.counts.locks;
    begin_effect(effect);
  }
  return {*this, idle_owner, effect};
}

// From now on no call begins that would invalidate the capture.
void arena::begin_effect(capture_effect effect) noexcept {
  state_.streams.begin_effect(effect);
  if (effect != capture_effect::foreign) context_order_.forbid();
  if (effect == capture_effect::announced) mutex_.begin_generation();  // ends waits for fences
}

void arena::wait_for_calls(capture_effect effect, std::optional<std::uint64_t> stream_key) {
  arena_lock lock{mutex_};
  ++state_.counts.locks;
  if (stream_key) {  // a fence recorded once the stream captures would join the capture
    if (const std::optional<owner_id> stream = state_.streams.find(*stream_key)) {
      wait_for_handle_calls(lock, *stream, *stream_key);
    }
  }
  if (effect == capture_effect::foreign) {
    state_.calls.context_records.wait_for_none(lock);
    return;
  }
  state_.calls.host_waits.wait_for_none(lock);
  state_.calls.give_backs.wait_for_none(lock);
  context_order_.wait_for_records(lock);
}

// In a forked child the pool's lock may be held forever by a thread that does not exist there.
std::uint64_t arena::capture_end(owner_id stream, capture_effect effect) noexcept {
  if (state_.own_device.condition() == device_condition::forked) return 0;
  const arena_lock lock{mutex_};
  ++state_.counts.locks;
  state_.streams.end_effect(effect);
  if (effect != capture_effect::foreign) context_order_.allow();
  mutex_.begin_generation();  // wakes requests that waited for the end
  return stream == idle_owner ? 0 : state_.streams.capture_end(stream);
}

pool_capture::~pool_capture() {
  arena* const pool = pool_;
  if (const std::uint64_t graph = end(); graph != 0) {
    static_cast<void>(without_exceptions([&] { return pool->graph_release(graph); }));
  }
}

std::uint64_t pool_capture::end() noexcept {
  arena* const pool = std::exchange(pool_, nullptr);
  return pool != nullptr ? pool->capture_end(stream_, effect_) : 0;
}

status arena::graph_release(std::uint64_t graph) {
  arena_lock lock{mutex_};
  status gone = state_.streams.graph_gone(graph);
  fences_.record(lock);
  return gone;
}

std::uint64_t arena::open_region(stream_ref stream, std::uint64_t key) {
  const arena_lock lock{mutex_};
  return state_.streams.open_region(stream, key);
}

status arena::stand_for_all_work(stream_ref all) {
  const result<std::uint64_t> key = state_.streams.key_of(all);
  if (!key) return key.why();
  const arena_lock lock{mutex_};
  context_order_.begin(all, *key);
  return {};
}

void arena::on_out_of_memory(const oom_callback& callback) {
  const arena_lock lock{mutex_};
  ladder_.add_callback(callback);
}

void arena::explain(const pending_request& request, oom_report* report) const {
  oom_diagnosis found = diagnose(state_, request);
  report->cause = found.cause;
  report->pending_on = std::move(found.pending_on);
  report->pending_bytes = found.pending_bytes;
  report->pool = config_.name;
  report->policy = config_.policy_name;
  report->rounded_bytes = request.bytes;
  report->driver_message = request.driver_error.message();
}

void arena::ask_device(arena_lock& lock, oom_report* report) const {
  const unlocked_section waits{lock};
  // A job with no other process adds nothing: this process's own limit says the same.
  if (config_.group && (!config_.group->counts_measured() || config_.group->held_by_others() != 0)) {
    report->group_is_job = config_.group->counts_measured();
    report->group = config_.group->name();
    report->group_limit_bytes = config_.group->limit();
    report->group_held_bytes = config_.group->held();
  }
  const result<memory_info> m = state_.own_device.memory();
  report->device_total_bytes = m.ok() ? m->total_bytes : config_.total_bytes;
  if (m.ok()) report->device_free_bytes = m->free_bytes;
  if (is_fragmented(*report)) report->cause = oom_cause::fragmentation;
  if (report->cause == oom_cause::device_full) report->holders = other_holders(state_.own_device.info());
  if (report->cause == oom_cause::limit && config_.group) report->holders = members_of(*config_.group);
}

}  // namespace gpumem
