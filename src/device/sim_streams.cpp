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

std::uint64_t add_saturating(std::uint64_t a, std::uint64_t b) noexcept {
  return b > UINT64_MAX - a ? UINT64_MAX : a + b;
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

std::uint32_t sim_streams::find(stream_ref s) const noexcept {
  if (s.handle == nullptr) return 0;
  const auto value = reinterpret_cast<std::uintptr_t>(s.handle);
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
  // Continues the numbers of the index's last stream, so that clocks that refer to its work stay valid.
  const std::uint64_t sequence = streams_[index].sequence;
  stream_state& state = streams_[index] = stream_state{};
  state.handle = handle_of_slot(slot);
  state.id = ++last_id_;
  state.sequence = sequence;
  state.context = kind.context;
  state.blocking = kind.blocking && !kind.legacy;
  state.legacy = kind.legacy;
  state.seen_by_legacy = sequence;  // the index's last stream's work, which the host knows is done
  any_blocking_ = any_blocking_ || state.blocking;
  return state.handle;
}

status sim_streams::destroy(stream_ref s) {
  const std::uint32_t index = find(s);
  if (index == no_stream) return unknown("destroy_stream", s);
  if (index == 0) return {errc::invalid_argument, "destroy_stream of the default stream: it always exists"};
  if (streams_[index].capturing) {
    return {errc::unsupported, fmt::format("destroy_stream {}: it is capturing, expected end_capture first", s.handle)};
  }
  retired_.push_back(index);
  const auto slot = static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(s.handle) >> handle_shift) - 1);
  stream_of_slot_[slot] = no_stream;
  free_slots_.push_back(slot);
  return {};
}

result<std::uint64_t> sim_streams::id(stream_ref s) const {
  const std::uint32_t index = find(s);
  if (index == no_stream) return unknown(to_string(device_call::stream_id), s);
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
    stream_state& other = streams_[i];
    if (i == stream || other.context != s.context) continue;
    if (s.legacy && other.blocking && !other.capturing && other.seen_by_legacy != other.sequence) {
      order_behind(s, i);
      other.seen_by_legacy = other.sequence;
    } else if (s.blocking && other.legacy && s.legacy_seen != other.sequence) {
      order_behind(s, i);
      s.legacy_seen = other.sequence;
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

void sim_streams::merge(vector_clock& into, const vector_clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// --- fences --------------------------------------------------------------------------------------------------

// A fence's id is its slot plus one, below its generation: the slot is reused, the id is not.
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

sim_streams::fence_state* sim_streams::find(fence f) noexcept {
  const std::uint64_t slot = (f.id & UINT32_MAX) - 1;
  if (slot >= fences_.size()) return nullptr;
  fence_state& state = fences_[slot];
  return state.live && state.generation == f.id >> 32 ? &state : nullptr;
}

result<fence> sim_streams::record(stream_ref on) {
  const std::uint32_t index = find(on);
  if (index == no_stream) return unknown(to_string(device_call::record), on);
  stream_state& s = streams_[index];
  if (s.capturing) return refuse_on(s, device_call::record);
  enter_queue(index);
  fence_state* state = nullptr;
  const fence f = new_fence(s.id, s.tail_ns, state);
  state->behind = s.ordered_behind;
  if (state->behind.size() <= index) state->behind.resize(index + 1);
  state->behind[index] = s.sequence;
  return f;
}

result<fence> sim_streams::record_context(std::uint32_t context) {
  if (status refused = refuse_while_capturing(device_call::record_context, context); !refused) return refused;
  fence_state* state = nullptr;
  const fence f = new_fence(0, 0, state);
  state->behind.resize(streams_.size());
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].context != context) continue;
    state->behind[i] = streams_[i].sequence;
    state->done_ns = std::max(state->done_ns, streams_[i].tail_ns);
  }
  return f;
}

result<bool> sim_streams::query(fence f) {
  fence_state* state = find(f);
  if (state == nullptr) return unknown(device_call::query, f);
  if (capturing_ != 0) {
    for (stream_state& s : streams_) {
      if (s.capturing && s.id == state->stream_id) return refuse_on(s, device_call::query);
    }
  }
  if (state->done_ns > now_ns_) return false;
  merge(host_, state->behind);
  return true;
}

result<std::uint64_t> sim_streams::done_ns(fence f) {
  const fence_state* state = find(f);
  if (state == nullptr) return unknown(device_call::query, f);
  return state->done_ns;
}

status sim_streams::wait_host(fence f) {
  fence_state* state = find(f);
  if (state == nullptr) return unknown(device_call::wait_host, f);
  if (status refused = refuse_while_capturing(device_call::wait_host); !refused) return refused;
  wait_until(state->done_ns);
  merge(host_, state->behind);
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
  merge(host_, first->behind);
  return true;
}

status sim_streams::wait_stream(stream_ref waiter, fence f) {
  const std::uint32_t index = find(waiter);
  if (index == no_stream) return unknown(to_string(device_call::wait_stream), waiter);
  fence_state* state = find(f);
  if (state == nullptr) return unknown(device_call::wait_stream, f);
  stream_state& s = streams_[index];
  if (s.capturing) return refuse_on(s, device_call::wait_stream);
  enter_queue(index);
  s.tail_ns = std::max(s.tail_ns, state->done_ns);
  merge(s.ordered_behind, state->behind);
  return {};
}

void sim_streams::drop(fence f) noexcept {
  fence_state* state = find(f);
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

status sim_streams::begin_capture(stream_ref s) {
  const std::uint32_t index = find(s);
  if (index == no_stream) return unknown("begin_capture", s);
  if (index == 0) return {errc::unsupported, "begin_capture on the default stream: expected a created stream"};
  stream_state& state = streams_[index];
  if (state.capturing) {
    return {errc::invalid_argument, fmt::format("begin_capture on stream {}: it is capturing already", s.handle)};
  }
  state.capturing = true;
  state.captured_lag_ns = 0;
  state.invalidated_by.clear();
  ++capturing_;
  return {};
}

// Runs the captured work once, now; its uses of memory then count like others.
status sim_streams::end_capture(stream_ref s) {
  const std::uint32_t index = find(s);
  if (index == no_stream) return unknown("end_capture", s);
  stream_state& state = streams_[index];
  if (!state.capturing) {
    return {errc::invalid_argument, fmt::format("end_capture on stream {}: it is not capturing", s.handle)};
  }
  state.capturing = false;
  --capturing_;
  if (!state.invalidated_by.empty()) {
    return {errc::device_error, fmt::format("end_capture on stream {}: a call of {} has spoilt the capture", s.handle,
                                            state.invalidated_by)};
  }
  if (state.captured_lag_ns != 0) {
    state.tail_ns = std::max(state.tail_ns, add_saturating(now_ns_, state.captured_lag_ns));
  }
  return {};
}

status sim_streams::refuse_on(stream_state& s, device_call call) {
  if (s.invalidated_by.empty()) s.invalidated_by = to_string(call);
  return {errc::unsupported, fmt::format("{}: stream {} is capturing", to_string(call), s.handle.handle)};
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

void sim_streams::invalidate(stream_ref s, std::string_view by) {
  const std::uint32_t index = find(s);
  if (index == no_stream || !streams_[index].capturing) return;
  if (streams_[index].invalidated_by.empty()) streams_[index].invalidated_by = by;
}

bool sim_streams::is_invalidated(stream_ref s) const noexcept {
  const std::uint32_t index = find(s);
  return index != no_stream && streams_[index].capturing && !streams_[index].invalidated_by.empty();
}

// --- errors --------------------------------------------------------------------------------------------------

status sim_streams::unknown(std::string_view what, stream_ref s) {
  return {errc::device_error, fmt::format("{}: {} is not a stream of this device", what, s.handle)};
}

status sim_streams::unknown(device_call call, fence f) {
  return {errc::device_error,
          fmt::format("{}: {:#x} is not a fence of this device, or was dropped", to_string(call), f.id)};
}

}  // namespace gpumem
