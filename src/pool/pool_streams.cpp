#include "pool_streams.hpp"

#include "arena.hpp"
#include "assign_or_return.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

pool_streams::pool_streams(arena& pool_arena) noexcept : arena_{pool_arena}, state_{pool_arena.state} {}

result<std::uint64_t> pool_streams::key_of(stream_ref stream) const {
  ASSIGN_OR_RETURN(const auto part_of_capture, captures(stream));
  return key_of(stream, part_of_capture);
}

result<bool> pool_streams::captures(stream_ref stream) const {
  if (!state_.streams.keys().captures_may_hide() || !state_.streams.keys().is_created_under_query(stream)) return false;
  ASSIGN_OR_RETURN(const auto capture, state_.own_device.capture_id(stream));
  return capture != 0;
}

result<std::uint64_t> pool_streams::key_of(stream_ref stream, bool captures) const {
  if (!captures || !state_.streams.keys().is_created_under_query(stream)) return state_.streams.keys().key_of(stream);
  ASSIGN_OR_RETURN(const auto foreign, state_.own_device.foreign_context(stream));
  const arena_lock lock{state_.mutex};
  return state_.streams.slots().key_while_capturing(stream, foreign);
}

status pool_streams::stream_release(std::uint64_t key) {
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  const owner_id stream = state_.streams.slots().find(key);
  if (stream == idle_owner) return {};
  if (state_.streams[stream].capturing()) {
    return {errc::invalid_argument, "a stream that is capturing cannot be released; end the capture first"};
  }
  state_.caches.reclaim(stream);
  state_.streams.end_stream(stream);
  arena_.fences.record(lock);
  wait_for_handle_calls(lock, stream, key);  // the program destroys the handle next
  return {};
}

// Waits for threads that record fences on the stream's handle. No record begins once the stream ends or captures.
void pool_streams::wait_for_handle_calls(arena_lock& lock, owner_id stream, std::uint64_t key) {
  while (state_.streams[stream].key == key && state_.streams[stream].handle_calls != 0) {
    lock.wait_for_generation(state_.mutex.generation(), std::nullopt);
  }
}

void pool_streams::poll() {
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  arena_.fences.poll(lock);
}

result<pool_capture> pool_streams::capture_begin(stream_ref capture_stream, std::uint64_t key, capture_effect effect) {
  const arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  state_.caches.reclaim(idle_owner);  // frees of this stream's blocks take the lock from now on
  const owner_id stream = state_.streams.slot_of(capture_stream, key);
  if (const result<owner_id> graph = state_.graphs.begin_capture(stream); !graph) return graph.why();
  begin_effect(effect);
  return pool_capture{*this, stream, effect};
}

pool_capture pool_streams::capture_elsewhere(capture_effect effect) {
  {
    const arena_lock lock{state_.mutex};
    ++state_.counts.locks;
    begin_effect(effect);
  }
  return {*this, idle_owner, effect};
}

// From now on no call begins that would invalidate the capture.
void pool_streams::begin_effect(capture_effect effect) noexcept {
  state_.streams.captures().begin(effect);
  if (effect != capture_effect::foreign) arena_.context_frees.forbid();
  if (effect == capture_effect::announced) state_.mutex.begin_generation();  // ends waits for fences
}

void pool_streams::wait_for_calls(capture_effect effect, std::optional<std::uint64_t> stream_key) {
  arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  if (stream_key) {  // a fence recorded once the stream captures would join the capture
    const owner_id stream = state_.streams.slots().find(*stream_key);
    if (stream != idle_owner) wait_for_handle_calls(lock, stream, *stream_key);
  }
  if (effect == capture_effect::foreign) {
    state_.calls.context_records.wait_for_none(lock);
    return;
  }
  state_.calls.host_waits.wait_for_none(lock);
  state_.calls.give_backs.wait_for_none(lock);
  arena_.context_frees.wait_for_records(lock);
}

// In a forked child the pool's lock may be held forever by a thread that does not exist there.
std::uint64_t pool_streams::capture_end(owner_id stream, capture_effect effect) noexcept {
  if (state_.own_device.condition() == device_condition::forked) return 0;
  const arena_lock lock{state_.mutex};
  ++state_.counts.locks;
  state_.streams.captures().end(effect);
  if (effect != capture_effect::foreign) arena_.context_frees.allow();
  state_.mutex.begin_generation();  // wakes requests that waited for the end
  return stream == idle_owner ? 0 : state_.graphs.end_capture(stream);
}

pool_capture::~pool_capture() {
  pool_streams* const pool = pool_;
  if (const std::uint64_t graph = end(); graph != 0) {
    static_cast<void>(without_exceptions([&] { return pool->graph_release(graph); }));
  }
}

std::uint64_t pool_capture::end() noexcept {
  pool_streams* const pool = std::exchange(pool_, nullptr);
  return pool != nullptr ? pool->capture_end(stream_, effect_) : 0;
}

status pool_streams::graph_release(std::uint64_t graph) {
  arena_lock lock{state_.mutex};
  status gone = state_.graphs.release(graph);
  arena_.fences.record(lock);
  return gone;
}

std::uint64_t pool_streams::open_region(stream_ref stream, std::uint64_t key, bool captures) {
  const arena_lock lock{state_.mutex};
  return state_.graphs.open_region(stream, key, captures);
}

status pool_streams::stand_for_all_work(stream_ref all) {
  const result<std::uint64_t> key = key_of(all);
  if (!key) return key.why();
  const arena_lock lock{state_.mutex};
  arena_.context_frees.begin(all, *key);
  return {};
}

}  // namespace gpumem
