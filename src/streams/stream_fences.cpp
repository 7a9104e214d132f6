// The fences of the stream order. This file reserves and queries them, and frees the blocks that a done fence covers;
// the caller records them on the device.
#include <algorithm>
#include <utility>

#include "stream_handle.hpp"
#include "stream_order.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

bool stream_order::handle_stays_valid(const stream_slot& slot) const noexcept {
  return !slot.ended && slot.represents == stream_slot::kind::stream && keys_.stays_valid(slot.stream);
}

result<fence_index> stream_order::reserve_fence(owner_id owner, bool is_known_to_live) noexcept try {
  stream_slot& slot = slots_[owner];
  const bool handle_is_valid = owner == named_ || (is_known_to_live && !slot.ended && !is_per_thread(slot.stream));
  const bool on_stream = (handle_is_valid && slot.represents == stream_slot::kind::stream) || handle_stays_valid(slot);
  // The default stream waits for all others, so a record on it invalidates captures, too. A created stream may be part
  // of a capture that began elsewhere, and the fence would become part of that capture.
  const bool spares_captures = slot.foreign == 0 && on_stream && !never_ends(slot.stream) && !slot.capturing();
  const bool may_hide = keys_.captures_may_hide();
  bool may = captures_.local() == 0;
  if (slot.foreign != 0) {
    may = may && !captures_.any_foreign();
  } else if (spares_captures) {
    may = (may && !may_hide) || keys_.captures_nothing(slot.stream);
  } else {
    may = may && (!may_hide || captures_.permit_context_events());
  }
  if (!may) return status{errc::unsupported, "no fence can be recorded while a capture may be under way"};
  if (!on_stream && slot.foreign == 0) {  // one event on the context serves all fences that are recorded together
    if (const fence_index same = fences_.unrecorded_on_context(); same != no_fence) {
      fences_.ref(same);
      return same;
    }
  }
  const bool by_stream = on_stream && slot.foreign == 0;
  return fences_.add_unrecorded({.stream = slot.stream,
                                 .foreign = slot.foreign,
                                 .by_stream = by_stream,
                                 .spares_captures = spares_captures,
                                 .key = slot.key,
                                 .at_end = slot.ended},
                                by_stream ? owner : idle_owner);
} catch (...) {
  return status::of_current_exception();
}

// A fence on this device covers no work of another context's stream. The fence of a default stream is an event on the
// context, too.
result<fence> stream_order::record_on_device(const unrecorded_fence& unrecorded) const noexcept {
  return without_exceptions([&]() -> result<fence> {
    if (unrecorded.foreign != 0) return device_.record_foreign(unrecorded.foreign);
    if ((!unrecorded.by_stream || never_ends(unrecorded.stream)) && keys_.blocking_stream_captures()) {
      return status{errc::unsupported, "no event can be recorded on the context while a blocking stream captures"};
    }
    return unrecorded.by_stream ? device_.record(unrecorded.stream) : device_.record_context();
  });
}

// Another thread may end the stream or begin a capture while an earlier record blocks, so both are checked again.
bool stream_order::begin_handle_call(const unrecorded_fence& unrecorded) noexcept {
  if (!unrecorded.by_stream) return true;
  stream_slot& slot = slots_[fences_[unrecorded.fence].order];
  if (slot.key != unrecorded.key || slot.capturing() || (slot.ended && !unrecorded.at_end)) return false;
  ++slot.handle_calls;
  return true;
}

void stream_order::end_handle_call(const unrecorded_fence& unrecorded) noexcept {
  if (unrecorded.by_stream) --slots_[fences_[unrecorded.fence].order].handle_calls;
}

result<fence_index> stream_order::cover(owner_id owner) noexcept try {
  stream_slot& slot = slots_[owner];
  if (slot.is_graph() && !slot.ended)
    return status{errc::unsupported, "what a graph owns stays with it until it is released"};
  // A fence that failed to record covers nothing, so record another.
  if (slot.dirty || (!slot.fences.empty() && fences_[slot.fences.back().fence].record_failed)) {
    make_room(slot.fences);
    result<fence_index> made = reserve_fence(owner);
    if (!made) return made;
    slot.fences.push_back({slot.epoch, *made});
    slots_.watch(owner);
    ++slot.epoch;
    slot.dirty = false;
    slot.unfenced = {};
  }
  if (slot.fences.empty()) return no_fence;
  const fence_index f = slot.fences.back().fence;
  fences_.ref(f);
  return f;
} catch (...) {
  return status::of_current_exception();
}

result<fence_index> stream_order::cover(owner_id owner, std::uint64_t epoch) noexcept {
  const std::vector<stream_slot::pending>& fences = slots_[owner].fences;
  const auto covering = std::ranges::find_if(fences, [&](const stream_slot::pending& pending) {
    return pending.epoch >= epoch && !fences_[pending.fence].record_failed;
  });
  if (covering == fences.end()) return cover(owner);
  fences_.ref(covering->fence);
  return covering->fence;
}

std::uint64_t stream_order::epoch_of(owner_id owner, fence_index fence) const noexcept {
  const auto found = std::ranges::find(slots_[owner].fences, fence, &stream_slot::pending::fence);
  return found != slots_[owner].fences.end() ? found->epoch : 0;
}

bool stream_order::fence_behind(owner_id owner) noexcept {
  const result<fence_index> f = cover(owner);
  if (!f || *f == no_fence) return false;
  fences_.unref(*f);
  return true;
}

owner_id stream_order::begin_batch(stream_ref stream, fence batch_fence) {
  std::vector<stream_slot::pending> fences(1);
  fences_.make_room();
  const owner_id owner = slots_.add();
  fences_.count_recorded();
  fences.front() = {slots_[owner].epoch, fences_.add({.device_fence = batch_fence, .refcount = 1})};
  slots_[owner].ended = true;
  slots_[owner].stream = stream;
  slots_[owner].fences = std::move(fences);
  slots_.watch(owner);
  return owner;
}

void stream_order::end_batch(owner_id owner) noexcept {
  ++slots_[owner].epoch;
  slots_[owner].dirty = false;
}

// Fences of a stream complete in order, so one query per stream and round is enough.
tracked_fence::state stream_order::ask(fence_index fence) noexcept {
  tracked_fence& t = fences_[fence];
  if (t.status != tracked_fence::state::pending || !may_ask(fence)) return t.status;
  stream_slot& slot = slots_[t.order];
  const bool ordered = t.order != idle_owner && !t.foreign;  // events on the context are recorded without the lock
  if (ordered && slot.found_pending.round == round_ && t.number >= slot.found_pending.number) return t.status;
  const result<bool> done = device_.query(t.device_fence);
  if (!done) {
    if (done.code() != errc::host_failure) t.status = tracked_fence::state::failed;
  } else if (*done) {
    t.status = tracked_fence::state::done;
  } else if (ordered) {
    slot.found_pending = {round_, t.number};
  }
  return t.status;
}

void stream_order::poll() noexcept {
  begin_round();
  slots_.visit_watched([this](owner_id owner) {
    collect_done_fences(owner);
    release_if_ended(owner);
  });
}

// Asks the slot's fences in order and makes the blocks of each finished fence idle. A finished fence also covers the
// fences before it, even one that another thread is still recording.
void stream_order::collect_done_fences(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  using state = tracked_fence::state;
  std::size_t ended = 0;
  bool asks = true;
  for (std::size_t k = 0; k < slot.fences.size(); ++k) {
    const auto [epoch, behind] = slot.fences[k];
    const state seen = asks ? ask(behind) : fences_[behind].status;
    if (seen == state::pending) asks = false;
    if (seen == state::done) {
      slot.done = epoch;
      heap_.make_idle(owner, epoch);
      ended = k + 1;
    } else if (seen == state::failed && k == ended) {
      if (slot.ended && !fences_[behind].record_failed) {
        heap_.make_idle(owner, epoch, true);  // no fence will report when this memory is free: leaked
      } else {
        slot.dirty = true;  // still usable on its own stream; another fence may be tried for the others
      }
      ended = k + 1;
    }
  }
  const auto end = slot.fences.begin() + static_cast<std::ptrdiff_t>(ended);
  for (auto each = slot.fences.begin(); each != end; ++each) fences_.unref(each->fence);
  slot.fences.erase(slot.fences.begin(), end);
}

void stream_order::fence_named(owner_id owner, bool was_asked, std::uint64_t batch_bytes) noexcept {
  stream_slot& slot = slots_[owner];
  if ((single() && batch_bytes == bytes_a_batch) || !slot.dirty || slot.capturing() || slot.ended ||
      slot.represents != stream_slot::kind::stream)
    return;
  if (never_ends(slot.stream) || slot.foreign != 0 || handle_stays_valid(slot)) return;
  if (slot.unfenced.frees < frees_a_batch && slot.unfenced.bytes < batch_bytes) return;
  if (!was_asked) {
    if (keys_.captures_may_hide() && !keys_.captures_nothing(slot.stream)) return;
    const result<std::uint64_t> id = device_.stream_id(slot.stream);
    if (!id || *id != slot.key) return;
  }
  constexpr std::size_t most_pending = 16;
  if (!slot.fences.empty()) {  // drop the fences that are done, so that a stream keeps few
    begin_round();
    collect_done_fences(owner);
  }
  named_ = owner;
  const bool taken = fence_behind(owner);
  named_ = idle_owner;
  if (!taken || slot.fences.size() <= most_pending) return;
  // The latest fence covers the one before it.
  const auto before = slot.fences.end() - 2;
  fences_.unref(before->fence);
  slot.fences.erase(before);
}

}  // namespace gpumem
