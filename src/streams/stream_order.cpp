// The life of streams: their slots are created, forgotten and removed.
#include "stream_order.hpp"

#include <algorithm>

#include "without_exceptions.hpp"

namespace gpumem {

owner_id stream_order::slot_of(stream_ref stream, std::uint64_t key) {
  if (key == last_key_ && last_slot_ != idle_owner) return last_slot_;
  owner_id found = slots_.find(key);
  if (found == idle_owner) {
    const result<std::uint64_t> context = device_.foreign_context(stream);
    if (!context) throw thrown_status{context.why()};
    if (slots_.streams() >= forget_when_) forget_unused();
    found = slots_.add_stream(stream, key, *context, keys_.is_created_under_query(stream));
    note_user();
  }
  slots_[found].was_named = true;
  last_key_ = key;
  return last_slot_ = found;
}

// Under `notify` a living stream may have the key of an ended one.
owner_id stream_order::owner_of_free(owner_id owner, stream_ref stream, std::uint64_t key) {
  const bool is_own = slots_[owner].key == key;
  if (is_own && !slots_[owner].ended) return owner;
  if (const owner_id living = slots_.find(key); living != idle_owner) return living;
  if (is_own) return owner;
  const owner_id latest = slots_.latest(stream);
  if (latest != idle_owner && slots_[latest].key == key) return latest;
  return slot_of(stream, key);
}

// True if the slot can be forgotten: no request named it lately, and no block, cache or call refers to it. A stream of
// another context also must own no free blocks, because the fences for blocks of forgotten streams are events on this
// context and do not cover its work.
bool stream_order::is_unused(owner_id owner) const noexcept {
  const stream_slot& slot = slots_[owner];
  const bool is_referred_to = slot.references != 0 || slot.handle_calls != 0 || slot.capturing();
  return !slot.was_named && !is_referred_to && (slot.foreign == 0 || heap_.free_blocks().empty(owner));
}

// Streams end without notice under `query`, and per-thread streams always do. Forgets each stream that has not been
// named since the last call and to which nothing refers: `left_behind_` gets its free blocks, and its waits are lost.
// If it comes again, it is a new stream. At least a third of the streams are new at each call, so a stream costs O(1),
// and at most three times as many slots exist as are needed.
void stream_order::forget_unused() {
  if (left_behind_ == idle_owner) {
    left_behind_ = slots_.add();
    slots_[left_behind_].ended = true;  // its fences are events on the whole context
    slots_.watch(left_behind_);
  }
  slots_.forget_streams_if([this](owner_id owner) {
    const bool is_forgotten = owner != last_slot_ && is_unused(owner);
    slots_[owner].was_named = false;
    if (is_forgotten) {
      stream_slot& heir = slots_[left_behind_];
      if (heap_.hand_over(owner, slots_[owner].epoch, left_behind_, heir.epoch, false)) heir.dirty = true;
      remove(owner);
    }
    return is_forgotten;
  });
  forget_when_ = slots_.streams() + std::max(least_forgotten, slots_.streams() / 2);
}

void stream_order::end_stream(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  slot.ended = true;
  slots_.watch(owner);
  slots_.forget_key(slot.key);
  if (last_slot_ == owner) last_slot_ = idle_owner;
  // The program reports the end while the handle is still valid, so the fence is recorded on the stream itself, which
  // invalidates no other stream's capture. An event on the context could, so it is left out in that case.
  const bool may_hide = keys_.captures_may_hide();
  if (may_hide && slot.dirty && slot.foreign == 0 && !slot.capturing() && keys_.is_created_under_query(slot.stream)) {
    named_ = owner;
  }
  if (!may_hide || named_ == owner) fence_behind(owner);
  named_ = idle_owner;
  release_if_ended(owner);
}

void stream_order::end_graph(owner_id graph) noexcept {
  slots_[graph].ended = true;
  heap_.pieces().end_region(graph, heap_.free_blocks().oldest(graph));
  slots_.watch(graph);
  slots_[graph].dirty = true;
  if (!keys_.captures_may_hide()) fence_behind(graph);
  release_if_ended(graph);
}

void stream_order::release_if_ended(owner_id owner) noexcept {
  const stream_slot& slot = slots_[owner];
  if (!slot.ended || slot.references != 0 || slot.handle_calls != 0 || !heap_.free_blocks().empty(owner)) return;
  remove(owner);
}

void stream_order::remove(owner_id owner) noexcept {
  for (const stream_slot::pending& p : slots_[owner].fences) fences_.unref(p.fence);
  if (left_behind_ == owner) left_behind_ = idle_owner;
  slots_.remove(owner);
}

}  // namespace gpumem
