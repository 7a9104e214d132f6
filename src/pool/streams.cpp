#include "streams.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace gpumem {
namespace {

/// The legacy default stream (null, or the driver's name 1 for it) lives as long as its context.
bool never_ends(stream_ref s) noexcept { return reinterpret_cast<std::uintptr_t>(s.handle) <= 1; }

/// The per-thread default stream: one handle, but a stream of its own in every thread.
bool is_per_thread(stream_ref s) noexcept { return reinterpret_cast<std::uintptr_t>(s.handle) == 2; }

}  // namespace

stream_table::stream_table(device& on, heap& of, stream_id_mode ids) : device_{on}, heap_{of}, ids_{ids} {
  slots_.emplace_back();
}

stream_table::~stream_table() {
  for (const tracked_fence& f : fences_) {
    if (f.holders != 0) device_.drop(f.device_fence);
  }
}

owner_id stream_table::slot_of(stream_ref s, std::uint64_t key) {
  if (was_latest(key)) return last_slot_;
  const owner_id found = by_key_.find(key);
  last_slot_ = found != flat_map::none ? found : add_slot(s, key);
  last_key_ = key;
  return last_slot_;
}

std::optional<owner_id> stream_table::find(std::uint64_t key) const {
  const owner_id found = by_key_.find(key);
  if (found == flat_map::none) return std::nullopt;
  return found;
}

[[gnu::cold]] owner_id stream_table::add_slot(stream_ref s, std::uint64_t key) {
  const owner_id o = heap_.add_owner();
  if (o >= slots_.size()) slots_.resize(o + 1);
  slots_[o] = stream_slot{};
  slots_[o].in_use = true;
  slots_[o].stream = s;
  slots_[o].key = key;
  by_key_.insert(key, o);
  ++seen_;
  return o;
}

std::uint64_t stream_table::in_use() const noexcept {
  std::uint64_t n = 0;
  for (const stream_slot& s : slots_) n += s.in_use && !s.is_graph ? 1U : 0U;
  return n;
}

bool stream_table::record_on_stream(const stream_slot& s) const noexcept {
  // Under `query` a handle may have died without a word since it was last seen, so only the default stream is named. A
  // per-thread one can be named only by its own thread.
  if (s.gone || s.is_graph || is_per_thread(s.stream)) return false;
  return ids_ == stream_id_mode::notify || never_ends(s.stream);
}

result<fence_index> stream_table::record(owner_id o) {
  const stream_slot& slot = slots_[o];
  const bool on_stream = record_on_stream(slot);
  // The default stream waits for all others, so no capture survives a record on it either.
  if (on_stream && !never_ends(slot.stream) ? slot.capturing : captures_ > 0) {
    return status{errc::unsupported, "no fence can be recorded while a capture is under way"};
  }
  result<fence> made = on_stream ? device_.record(slot.stream) : device_.record_context();
  if (!made) return made.why();
  ++recorded_;
  fence_index f = 0;
  if (!spare_fences_.empty()) {
    f = spare_fences_.back();
    spare_fences_.pop_back();
  } else {
    f = static_cast<fence_index>(fences_.size());
    fences_.emplace_back();
  }
  fences_[f] = {.device_fence = *made, .holders = 1, .seen = tracked_fence::state::pending};
  return f;
}

result<fence_index> stream_table::cover(owner_id o) {
  stream_slot& slot = slots_[o];
  if (slot.is_graph && !slot.gone)
    return status{errc::unsupported, "what a graph owns stays with it until it is released"};
  if (slot.dirty) {
    result<fence_index> made = record(o);
    if (!made) return made;
    slot.fences.push_back({slot.epoch, *made});
    ++slot.epoch;
    slot.dirty = false;
  }
  if (slot.fences.empty()) return no_fence;
  const fence_index f = slot.fences.back().behind;
  hold(f);
  return f;
}

void stream_table::let_go(fence_index f) noexcept {
  if (--fences_[f].holders != 0) return;
  device_.drop(fences_[f].device_fence);
  fences_[f].device_fence = {};
  spare_fences_.push_back(f);
}

tracked_fence::state stream_table::ask(fence_index f) {
  tracked_fence& t = fences_[f];
  if (t.seen == tracked_fence::state::pending && captures_ == 0) {
    const result<bool> done = device_.query(t.device_fence);
    if (!done) {
      t.seen = tracked_fence::state::failed;
    } else if (*done) {
      t.seen = tracked_fence::state::done;
    }
  }
  return t.seen;
}

void stream_table::poll() {
  for (owner_id o = 1; o < end(); ++o) {
    stream_slot& slot = slots_[o];
    if (!slot.in_use) continue;
    std::size_t settled = 0;
    for (; settled < slot.fences.size(); ++settled) {
      const auto [epoch, behind] = slot.fences[settled];
      const tracked_fence::state seen = ask(behind);
      if (seen == tracked_fence::state::pending) break;
      if (seen == tracked_fence::state::done) {
        slot.done = epoch;
        heap_.settle(o, epoch);
      } else if (slot.gone) {
        heap_.settle(o, epoch, true);  // nothing will ever say when this memory is free: leaked
      } else {
        slot.dirty = true;  // still good for its own stream; another fence may be tried for the others
      }
      let_go(behind);
    }
    slot.fences.erase(slot.fences.begin(), slot.fences.begin() + static_cast<std::ptrdiff_t>(settled));
    retire(o);
  }
}

status stream_table::order_behind(owner_id waiter, owner_id o) {
  std::vector<std::uint32_t>& waited = slots_[waiter].waited;
  if (waited.size() < slots_.size()) waited.resize(slots_.size());
  if (!slots_[o].dirty && waited[o] + 1 == slots_[o].epoch) return {};
  result<fence_index> behind = cover(o);
  if (!behind) return behind.why();
  if (*behind != no_fence) {
    status ok = order_behind_fence(waiter, *behind);
    let_go(*behind);
    if (!ok) return ok;
  }
  waited[o] = slots_[o].epoch - 1;
  return {};
}

status stream_table::order_behind_fence(owner_id waiter, fence_index f) {
  if (fences_[f].seen == tracked_fence::state::done) return {};
  if (fences_[f].seen == tracked_fence::state::failed) return {errc::device_error, "the fence has failed"};
  status ok = device_.wait_stream(slots_[waiter].stream, fences_[f].device_fence);
  if (ok) ++device_waits_;
  return ok;
}

void stream_table::stream_gone(owner_id o) {
  stream_slot& slot = slots_[o];
  slot.gone = true;
  by_key_.erase(slot.key);
  if (last_slot_ == o) last_slot_ = idle_owner;
  if (result<fence_index> covered = cover(o); covered && *covered != no_fence) let_go(*covered);
  retire(o);
}

void stream_table::retire(owner_id o) {
  stream_slot& slot = slots_[o];
  if (!slot.gone || slot.references != 0 || !heap_.owns_nothing(o)) return;
  for (const stream_slot::pending& p : slot.fences) let_go(p.behind);
  if (slot.is_graph) graphs_.erase(slot.key);
  slot = stream_slot{};
  for (stream_slot& other : slots_) {
    if (o < other.waited.size()) other.waited[o] = 0;
  }
  heap_.remove_owner(o);
}

result<owner_id> stream_table::capture_begin(owner_id o) {
  if (slots_[o].capturing) return status{errc::invalid_argument, "the stream is capturing already"};
  const owner_id g = heap_.add_owner();
  if (g >= slots_.size()) slots_.resize(g + 1);
  slots_[g] = stream_slot{};
  slots_[g].in_use = true;
  slots_[g].is_graph = true;
  slots_[g].key = next_graph_++;
  slots_[g].stream = slots_[o].stream;
  graphs_.insert(slots_[g].key, g);
  slots_[o].capturing = true;
  slots_[o].graph = g;
  ++slots_[g].references;  // by the capture
  ++captures_;
  ++seen_;
  return g;
}

result<std::uint64_t> stream_table::capture_end(owner_id o) {
  stream_slot& slot = slots_[o];
  if (!slot.capturing) return status{errc::invalid_argument, "the stream is not capturing"};
  const owner_id g = slot.graph;
  slot.capturing = false;
  slot.graph = idle_owner;
  --slots_[g].references;
  --captures_;
  return slots_[g].key;
}

status stream_table::graph_gone(std::uint64_t graph) {
  const owner_id g = graphs_.find(graph);
  if (g == flat_map::none || slots_[g].gone) {
    return {errc::invalid_argument, fmt::format("graph {} is unknown or was released already", graph)};
  }
  if (slots_[g].references != 0) {
    for (const stream_slot& s : slots_) {
      if (s.capturing && s.graph == g)
        return {errc::invalid_argument, fmt::format("graph {} is still being captured", graph)};
    }
  }
  slots_[g].gone = true;
  slots_[g].dirty = true;  // its latest run may be in flight on any stream
  if (result<fence_index> covered = cover(g); covered && *covered != no_fence) let_go(*covered);
  retire(g);
  return {};
}

std::uint64_t stream_table::metadata_bytes() const noexcept {
  std::uint64_t bytes = slots_.capacity() * sizeof(stream_slot) + fences_.capacity() * sizeof(tracked_fence) +
                        by_key_.bytes() + graphs_.bytes();
  for (const stream_slot& s : slots_) {
    bytes += s.fences.capacity() * sizeof(stream_slot::pending) + s.waited.capacity() * sizeof(std::uint32_t);
  }
  return bytes;
}

}  // namespace gpumem
