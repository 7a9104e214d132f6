// Slots of streams and graphs: found, forgotten, ended; captures and regions.
#include "stream_order.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "stream_handle.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

stream_order::stream_order(device& device, heap& heap, stream_id_mode ids) : device_{device}, heap_{heap}, ids_{ids} {
  slots_.emplace_back();
}

stream_order::~stream_order() {
  for (const tracked_fence& f : fences_) {
    if (f.refcount != 0) device_.drop(f.device_fence);
  }
}

std::optional<owner_id> stream_order::find(std::uint64_t key) const {
  const owner_id found = slot_in(by_key_, key);
  if (found == idle_owner) return std::nullopt;
  return found;
}

// Creates an owner in the heap, and its slot. Throws with nothing changed.
owner_id stream_order::take_slot() {
  make_room(slots_);
  watched_.reserve(slots_.capacity());       // so that `watch` need not allocate
  const owner_id owner = heap_.add_owner();  // at most one more than there are slots
  if (owner >= slots_.size()) slots_.resize(owner + 1);
  slots_[owner].in_use = true;
  slots_[owner].done = slots_[owner].epoch - 1;
  return owner;
}

owner_id stream_order::slot_of(stream_ref stream, std::uint64_t key) {
  if (key == last_key_ && last_slot_ != idle_owner) return last_slot_;
  owner_id found = slot_in(by_key_, key);
  if (found == idle_owner) {
    const result<std::uint64_t> context = device_.foreign_context(stream);
    if (!context) throw thrown_status{context.why()};
    if (by_key_.size() >= forget_when_) forget_unused();
    owner_id& named = by_key_[key];
    owner_id* const latest = has_lasting_handle(stream) ? &by_handle_[number_of(stream)] : nullptr;
    named = found = take_slot();
    if (latest != nullptr) *latest = found;
    ++in_use_;
    stream_slot& slot = slots_[found];
    slot.stream = stream;
    slot.key = key;
    slot.foreign = *context;
    ++seen_;
  }
  slots_[found].was_named = true;
  last_key_ = key;
  return last_slot_ = found;
}

// Under `notify` a living stream may have the key of an ended one.
owner_id stream_order::owner_of_free(owner_id owner, stream_ref stream, std::uint64_t key) {
  const bool is_own = slots_[owner].key == key;
  if (is_own && !slots_[owner].ended) return owner;
  if (const owner_id living = slot_in(by_key_, key); living != idle_owner) return living;
  if (is_own) return owner;
  const owner_id latest = slot_in(by_handle_, number_of(stream));
  if (latest != idle_owner && slots_[latest].key == key) return latest;
  return slot_of(stream, key);
}

// An event on this context covers no work of another context, so a foreign stream keeps its free blocks.
bool stream_order::is_unused(owner_id owner) const noexcept {
  const stream_slot& slot = slots_[owner];
  const bool is_referred_to = slot.references != 0 || slot.handle_calls != 0 || slot.capturing;
  return !slot.was_named && !is_referred_to && (slot.foreign == 0 || heap_.free_blocks().empty(owner));
}

// Streams end without notice under `query`, and per-thread streams always do. Forgets each stream that has not been
// named since the last call and to which nothing refers: `left_behind_` gets its free blocks, and its waits are lost.
// If it comes again, it is a new stream. At least a third of the streams are new at each call, so a stream costs O(1),
// and at most three times as many slots exist as are needed.
void stream_order::forget_unused() {
  if (left_behind_ == idle_owner) {
    left_behind_ = take_slot();
    slots_[left_behind_].ended = true;  // its fences are events on the whole context
    ++in_use_;
    watch(left_behind_);
  }
  std::erase_if(by_key_, [this](const auto& named) {
    const owner_id owner = named.second;
    if (owner == idle_owner) return true;
    const bool is_forgotten = owner != last_slot_ && is_unused(owner);
    slots_[owner].was_named = false;
    if (is_forgotten) {
      stream_slot& heir = slots_[left_behind_];
      if (heap_.hand_over(owner, slots_[owner].epoch, left_behind_, heir.epoch, false)) heir.dirty = true;
      release_slot(owner);
    }
    return is_forgotten;
  });
  forget_when_ = by_key_.size() + std::max(least_forgotten, by_key_.size() / 2);
}

void stream_order::end_stream(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  slot.ended = true;
  watch(owner);
  by_key_.erase(slot.key);
  if (last_slot_ == owner) last_slot_ = idle_owner;
  // The program tells while the handle is valid. A fence on the stream itself invalidates no other stream's capture.
  if (fences_may_spoil() && slot.dirty && slot.foreign == 0 && !slot.capturing && has_lasting_handle(slot.stream)) {
    named_ = owner;
  }
  if (!fences_may_spoil() || named_ == owner) {
    fence_behind(owner);
  }
  named_ = idle_owner;
  retire(owner);
}

std::optional<std::uint64_t> stream_order::key_of_handle(stream_ref stream) const noexcept {
  const owner_id latest = slot_in(by_handle_, number_of(stream));
  if (latest == idle_owner) return std::nullopt;
  return slots_[latest].key;
}

void stream_order::retire(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  if (!slot.ended || slot.references != 0 || slot.handle_calls != 0 || !heap_.free_blocks().empty(owner)) return;
  if (slot.is_graph) graphs_.erase(slot.key);
  release_slot(owner);
}

void stream_order::release_slot(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  for (const stream_slot::pending& p : slot.fences) unref(p.fence);
  if (!slot.is_graph) --in_use_;
  if (left_behind_ == owner) left_behind_ = idle_owner;
  if (slot_in(by_handle_, number_of(slot.stream)) == owner) by_handle_.erase(number_of(slot.stream));
  // The next stream's epochs exceed all that other streams have waited for.
  const std::uint64_t next_epoch = slot.epoch + 1;
  const bool is_watched = slot.is_watched;
  slot = stream_slot{};
  slot.epoch = next_epoch;
  slot.is_watched = is_watched;
  heap_.remove_owner(owner);
}

// The graph's work runs in the context of the stream that captured it, and is fenced there.
owner_id stream_order::add_graph(const stream_slot& origin) {
  const stream_ref stream = origin.stream;
  const std::uint64_t foreign = origin.foreign;
  const std::uint64_t origin_key = origin.is_graph ? origin.origin_key : origin.key;
  owner_id& found_by_number = graphs_[next_graph_];
  const owner_id g = found_by_number = take_slot();  // `origin` may have moved
  stream_slot& graph = slots_[g];
  heap_.pieces().begin_region(g);
  graph.is_graph = true;
  graph.key = next_graph_++;
  graph.stream = stream;
  graph.foreign = foreign;
  graph.origin_key = origin_key;
  return g;
}

owner_id stream_order::graph_owner_of_free(owner_id graph, std::uint64_t key) {
  if (key == slots_[graph].origin_key || slots_[graph].ended) return graph;
  if (slots_[graph].withheld_owner == idle_owner) {
    const owner_id withheld = add_graph(slots_[graph]);
    slots_[graph].withheld_owner = withheld;
  }
  return slots_[graph].withheld_owner;
}

result<owner_id> stream_order::capture_begin(owner_id owner) {
  if (slots_[owner].capturing) return status{errc::invalid_argument, "the stream is capturing already"};
  const owner_id g = add_graph(slots_[owner]);
  slots_[owner].capturing = true;
  slots_[owner].graph = g;
  ++slots_[owner].references;  // the capture holds both
  ++slots_[g].references;
  ++seen_;
  return g;
}

std::uint64_t stream_order::capture_end(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  const owner_id g = slot.graph;
  slot.capturing = false;
  slot.graph = idle_owner;
  --slot.references;
  --slots_[g].references;
  return slots_[g].key;
}

std::uint64_t stream_order::open_region(stream_ref stream, std::uint64_t key) {
  const owner_id g = add_graph(slots_[slot_of(stream, key)]);
  ++seen_;
  return slots_[g].key;
}

owner_id stream_order::region(std::uint64_t number) const noexcept {
  const owner_id g = slot_in(graphs_, number);
  return slots_[g].ended ? idle_owner : g;
}

status stream_order::graph_gone(std::uint64_t graph) {
  const owner_id g = region(graph);
  if (g == idle_owner) {
    return {errc::invalid_argument, fmt::format("graph or region {} is unknown here, or was released already", graph)};
  }
  if (slots_[g].references != 0) {
    for (const stream_slot& s : slots_) {
      if (s.capturing && s.graph == g)
        return {errc::invalid_argument, fmt::format("graph {} is still being captured", graph)};
    }
  }
  const owner_id withheld = slots_[g].withheld_owner;
  release_graph(g);
  if (withheld != idle_owner) release_graph(withheld);
  return {};
}

void stream_order::release_graph(owner_id graph) {
  slots_[graph].ended = true;
  heap_.pieces().end_region(graph, heap_.free_blocks().oldest(graph));
  watch(graph);
  slots_[graph].dirty = true;  // its latest run may be in flight on any stream
  if (!fences_may_spoil()) fence_behind(graph);
  retire(graph);
}

std::uint64_t stream_order::metadata_bytes() const noexcept {
  std::uint64_t bytes = slots_.capacity() * sizeof(stream_slot) + fences_.capacity() * sizeof(tracked_fence) +
                        unrecorded_.capacity() * sizeof(unrecorded_fence) +
                        (by_key_.size() + by_handle_.size() + graphs_.size()) * 40 +  // about: a node and its bucket
                        watched_.capacity() * sizeof(owner_id);
  for (const stream_slot& s : slots_) {
    bytes += s.fences.capacity() * sizeof(stream_slot::pending) + s.waited.size() * 40;
  }
  return bytes;
}

}  // namespace gpumem
