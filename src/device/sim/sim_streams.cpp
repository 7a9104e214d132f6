#include "sim_streams.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gpumem {
namespace {

// Handles look like small addresses, clear of the driver's special values 1 and 2.
constexpr unsigned handle_shift = 12;

stream_ref handle_of_slot(std::size_t slot) {
  return {reinterpret_cast<void*>((std::uintptr_t{slot} + 1) << handle_shift)};
}

std::uint64_t add_saturating(std::uint64_t lhs, std::uint64_t rhs) noexcept {
  return rhs > UINT64_MAX - lhs ? UINT64_MAX : lhs + rhs;
}

}  // namespace

sim_streams::sim_streams(std::uint32_t queue_depth) : queue_depth_{queue_depth} {
  streams_.emplace_back();
  streams_.front().legacy = true;
  streams_.front().id = ++last_id_;
}

// --- the host's clock ----------------------------------------------------------------------------------------

void sim_streams::advance_to(std::uint64_t ns) noexcept { now_ns_ = std::max(now_ns_, ns); }

void sim_streams::advance_by(std::uint64_t ns) noexcept { now_ns_ = add_saturating(now_ns_, ns); }

void sim_streams::charge(std::uint64_t ns) noexcept {
  advance_by(ns);
  in_calls_ns_ = add_saturating(in_calls_ns_, ns);
}

void sim_streams::wait_until(std::uint64_t ns) noexcept {
  if (ns > now_ns_) charge(ns - now_ns_);
}

// --- streams -------------------------------------------------------------------------------------------------

std::uint32_t sim_streams::find(stream_ref stream) const noexcept {
  if (stream.handle == nullptr) return 0;
  const auto value = reinterpret_cast<std::uintptr_t>(stream.handle);
  const std::uintptr_t slot = (value >> handle_shift) - 1;
  if (value != (slot + 1) << handle_shift || slot >= stream_of_slot_.size()) return no_stream;
  return stream_of_slot_[slot];
}

std::uint32_t sim_streams::take_index() {
  for (std::uint32_t& index : retired_) {
    if (!host_knows_done({index, streams_[index].sequence})) continue;
    const std::uint32_t taken = index;
    index = retired_.back();
    retired_.pop_back();
    return taken;
  }
  streams_.emplace_back();
  return static_cast<std::uint32_t>(streams_.size() - 1);
}

stream_ref sim_streams::create(sim_stream kind) {
  const std::uint32_t index = take_index();
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(stream_of_slot_.size()));
    stream_of_slot_.push_back(no_stream);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  stream_of_slot_[slot] = index;
  // Continues the sequence numbers of the index's previous stream, so that clocks that refer to its work stay valid.
  const std::uint64_t sequence = streams_[index].sequence;
  stream_state& state = streams_[index] = stream_state{};
  state.handle = handle_of_slot(slot);
  state.id = ++last_id_;
  state.sequence = sequence;
  state.context = kind.context;
  state.blocking = kind.blocking && !kind.legacy;
  state.legacy = kind.legacy;
  state.seen_by_legacy = sequence;  // the host knows that the previous stream's work is done
  any_blocking_ = any_blocking_ || state.blocking;
  return state.handle;
}

status sim_streams::destroy(stream_ref stream) {
  const std::uint32_t index = find(stream);
  if (index == no_stream) return unknown("destroy_stream", stream);
  if (index == 0) return {errc::invalid_argument, "destroy_stream of the default stream: it always exists"};
  if (streams_[index].capturing) {
    return {errc::unsupported,
            fmt::format("destroy_stream {}: it is capturing, expected end_capture first", stream.handle)};
  }
  retired_.push_back(index);
  const auto slot = static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(stream.handle) >> handle_shift) - 1);
  stream_of_slot_[slot] = no_stream;
  free_slots_.push_back(slot);
  return {};
}

result<std::uint64_t> sim_streams::id(stream_ref stream) const {
  const std::uint32_t index = find(stream);
  if (index == no_stream) return unknown(to_string(device_call::stream_id), stream);
  return streams_[index].id;
}

work_point sim_streams::enqueue(std::uint32_t stream, std::uint64_t lag_ns) {
  stream_state& s = streams_[stream];
  if (s.capturing) {
    s.captured_lag_ns = std::max(s.captured_lag_ns, lag_ns);
    return mark(stream);
  }
  enter_queue(stream);
  s.tail_ns = std::max(s.tail_ns, add_saturating(now_ns_, lag_ns));
  if (queue_depth_ != 0) s.queued.back() = s.tail_ns;
  return mark(stream);
}

void sim_streams::order_behind(stream_state& waiter, std::uint32_t stream) {
  const stream_state& before = streams_[stream];
  waiter.tail_ns = std::max(waiter.tail_ns, before.tail_ns);
  merge(waiter.ordered_behind, before.ordered_behind);
  if (waiter.ordered_behind.size() <= stream) waiter.ordered_behind.resize(stream + 1);
  waiter.ordered_behind[stream] = std::max(waiter.ordered_behind[stream], before.sequence);
}

void sim_streams::order_legacy(std::uint32_t stream) {
  stream_state& s = streams_[stream];
  if (!any_blocking_ || !(s.blocking || s.legacy)) return;
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    stream_state& peer = streams_[i];
    if (i == stream || peer.context != s.context) continue;
    if (s.legacy && peer.blocking && !peer.capturing && peer.seen_by_legacy != peer.sequence) {
      order_behind(s, i);
      peer.seen_by_legacy = peer.sequence;
    } else if (s.blocking && peer.legacy && s.legacy_seen != peer.sequence) {
      order_behind(s, i);
      s.legacy_seen = peer.sequence;
    }
  }
}

void sim_streams::enter_queue(std::uint32_t stream) {
  order_legacy(stream);
  if (queue_depth_ == 0) return;
  stream_state& s = streams_[stream];
  while (!s.queued.empty() && s.queued.front() <= now_ns_) s.queued.pop_front();
  if (s.queued.size() >= queue_depth_) {
    wait_until(s.queued.front());
    while (!s.queued.empty() && s.queued.front() <= now_ns_) s.queued.pop_front();
  }
  s.queued.push_back(s.tail_ns);
}

// --- order ---------------------------------------------------------------------------------------------------

void sim_streams::merge(vector_clock& target, const vector_clock& source) {
  if (target.size() < source.size()) target.resize(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) target[i] = std::max(target[i], source[i]);
}

// --- fences --------------------------------------------------------------------------------------------------

// A fence's id has its generation in the high 32 bits and its slot plus one in the low: slots are reused, ids are not.
fence sim_streams::new_fence(std::uint64_t stream_id, std::uint64_t done_ns, fence_state*& state) {
  if (free_fences_.empty()) {
    fences_.emplace_back();
    free_fences_.reserve(fences_.capacity());  // so that drop never allocates
    free_fences_.push_back(static_cast<std::uint32_t>(fences_.size() - 1));
  }
  const std::uint32_t slot = free_fences_.back();
  free_fences_.pop_back();
  state = &fences_[slot];
  state->live = true;
  state->stream_id = stream_id;
  state->done_ns = done_ns;
  return {std::uint64_t{state->generation} << 32 | (std::uint64_t{slot} + 1)};
}

sim_streams::fence_state* sim_streams::find(fence fence) noexcept {
  const std::uint64_t slot = (fence.id & UINT32_MAX) - 1;
  if (slot >= fences_.size()) return nullptr;
  fence_state& state = fences_[slot];
  return state.live && state.generation == fence.id >> 32 ? &state : nullptr;
}

result<fence> sim_streams::record(stream_ref stream) {
  const std::uint32_t index = find(stream);
  if (index == no_stream) return unknown(to_string(device_call::record), stream);
  stream_state& s = streams_[index];
  if (s.capturing) return refuse_on(s, device_call::record);
  enter_queue(index);
  fence_state* state = nullptr;
  const fence f = new_fence(s.id, s.tail_ns, state);
  state->covered = s.ordered_behind;
  if (state->covered.size() <= index) state->covered.resize(index + 1);
  state->covered[index] = s.sequence;
  return f;
}

result<fence> sim_streams::record_context(std::uint32_t context) {
  if (status refused = refuse_while_capturing(device_call::record_context, context); !refused) return refused;
  fence_state* state = nullptr;
  const fence f = new_fence(0, 0, state);
  state->covered.resize(streams_.size());
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].context != context) continue;
    state->covered[i] = streams_[i].sequence;
    state->done_ns = std::max(state->done_ns, streams_[i].tail_ns);
  }
  return f;
}

result<bool> sim_streams::query(fence fence) {
  fence_state* state = find(fence);
  if (state == nullptr) return unknown(device_call::query, fence);
  if (capturing_ != 0) {
    for (stream_state& s : streams_) {
      if (s.capturing && s.id == state->stream_id) return refuse_on(s, device_call::query);
    }
  }
  if (state->done_ns > now_ns_) return false;
  merge(host_, state->covered);
  return true;
}

result<std::uint64_t> sim_streams::done_ns(fence fence) {
  const fence_state* state = find(fence);
  if (state == nullptr) return unknown(device_call::query, fence);
  return state->done_ns;
}

status sim_streams::wait_host(fence fence) {
  fence_state* state = find(fence);
  if (state == nullptr) return unknown(device_call::wait_host, fence);
  if (status refused = refuse_while_capturing(device_call::wait_host); !refused) return refused;
  wait_until(state->done_ns);
  merge(host_, state->covered);
  return {};
}

result<bool> sim_streams::wait_any(std::span<const fence> fences, std::uint64_t most_ns) {
  if (status refused = refuse_while_capturing(device_call::wait_host); !refused) return refused;
  const fence_state* first = nullptr;
  for (const fence f : fences) {
    const fence_state* const state = find(f);
    if (state == nullptr) return unknown(device_call::wait_host, f);
    if (first == nullptr || state->done_ns < first->done_ns) first = state;
  }
  if (first == nullptr) return false;
  if (first->done_ns > now_ns_ && first->done_ns - now_ns_ > most_ns) {
    wait_until(now_ns_ + most_ns);
    return false;
  }
  wait_until(first->done_ns);
  merge(host_, first->covered);
  return true;
}

status sim_streams::wait_stream(stream_ref waiter, fence fence) {
  const std::uint32_t index = find(waiter);
  if (index == no_stream) return unknown(to_string(device_call::wait_stream), waiter);
  fence_state* state = find(fence);
  if (state == nullptr) return unknown(device_call::wait_stream, fence);
  stream_state& s = streams_[index];
  if (s.capturing) return refuse_on(s, device_call::wait_stream);
  enter_queue(index);
  s.tail_ns = std::max(s.tail_ns, state->done_ns);
  merge(s.ordered_behind, state->covered);
  return {};
}

void sim_streams::drop(fence fence) noexcept {
  fence_state* state = find(fence);
  if (state == nullptr) return;
  state->live = false;
  ++state->generation;
  free_fences_.push_back(static_cast<std::uint32_t>(state - fences_.data()));
}

void sim_streams::wait_for_all() {
  host_.resize(streams_.size());
  std::uint64_t last_ns = 0;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    host_[i] = streams_[i].sequence;
    last_ns = std::max(last_ns, streams_[i].tail_ns);
  }
  wait_until(last_ns);
}

void sim_streams::wait_for_context(std::uint32_t context) {
  host_.resize(std::max(host_.size(), streams_.size()));
  std::uint64_t last_ns = 0;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].context != context) continue;
    host_[i] = streams_[i].sequence;
    last_ns = std::max(last_ns, streams_[i].tail_ns);
  }
  wait_until(last_ns);
}

// --- captures ------------------------------------------------------------------------------------------------

status sim_streams::begin_capture(stream_ref stream) {
  const std::uint32_t index = find(stream);
  if (index == no_stream) return unknown("begin_capture", stream);
  if (index == 0) return {errc::unsupported, "begin_capture on the default stream: expected a created stream"};
  stream_state& state = streams_[index];
  if (state.capturing) {
    return {errc::invalid_argument, fmt::format("begin_capture on stream {}: it is capturing already", stream.handle)};
  }
  state.capturing = true;
  state.captured_lag_ns = 0;
  state.invalidated_by.clear();
  ++capturing_;
  return {};
}

// Runs the captured work once, now, so that its uses of memory count like those of other work.
status sim_streams::end_capture(stream_ref stream) {
  const std::uint32_t index = find(stream);
  if (index == no_stream) return unknown("end_capture", stream);
  stream_state& state = streams_[index];
  if (!state.capturing) {
    return {errc::invalid_argument, fmt::format("end_capture on stream {}: it is not capturing", stream.handle)};
  }
  state.capturing = false;
  --capturing_;
  if (!state.invalidated_by.empty()) {
    return {errc::device_error, fmt::format("end_capture on stream {}: a call of {} has spoilt the capture",
                                            stream.handle, state.invalidated_by)};
  }
  if (state.captured_lag_ns != 0) {
    state.tail_ns = std::max(state.tail_ns, add_saturating(now_ns_, state.captured_lag_ns));
  }
  return {};
}

status sim_streams::refuse_on(stream_state& state, device_call call) {
  if (state.invalidated_by.empty()) state.invalidated_by = to_string(call);
  return {errc::unsupported, fmt::format("{}: stream {} is capturing", to_string(call), state.handle.handle)};
}

status sim_streams::refuse_while_capturing(device_call call) {
  status refused;
  if (capturing_ == 0) return refused;
  for (stream_state& s : streams_) {
    if (s.capturing) refused = refuse_on(s, call);
  }
  return refused;
}

status sim_streams::refuse_while_capturing(device_call call, std::uint32_t context) {
  status refused;
  if (capturing_ == 0) return refused;
  for (stream_state& s : streams_) {
    if (s.capturing && s.context == context) refused = refuse_on(s, call);
  }
  return refused;
}

void sim_streams::invalidate(stream_ref stream, std::string_view cause) {
  const std::uint32_t index = find(stream);
  if (index == no_stream || !streams_[index].capturing) return;
  if (streams_[index].invalidated_by.empty()) streams_[index].invalidated_by = cause;
}

bool sim_streams::is_invalidated(stream_ref stream) const noexcept {
  const std::uint32_t index = find(stream);
  return index != no_stream && streams_[index].capturing && !streams_[index].invalidated_by.empty();
}

// --- errors --------------------------------------------------------------------------------------------------

status sim_streams::unknown(std::string_view call, stream_ref stream) {
  return {errc::device_error, fmt::format("{}: {} is not a stream of this device", call, stream.handle)};
}

status sim_streams::unknown(device_call call, fence fence) {
  return {errc::device_error,
          fmt::format("{}: {:#x} is not a fence of this device, or was dropped", to_string(call), fence.id)};
}

}  // namespace gpumem
