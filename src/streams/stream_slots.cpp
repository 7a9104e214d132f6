#include "stream_slots.hpp"

#include "without_exceptions.hpp"

namespace gpumem {

std::optional<std::uint64_t> stream_slots::key_of_handle(stream_ref stream) const noexcept {
  const owner_id owner = latest(stream);
  if (owner == idle_owner) return std::nullopt;
  return slots_[owner].key;
}

owner_id stream_slots::take() {
  make_room(slots_);
  watched_.reserve(slots_.capacity());       // so that `watch` need not allocate
  const owner_id owner = heap_.add_owner();  // at most one more than there are slots
  if (owner >= slots_.size()) slots_.resize(owner + 1);
  slots_[owner].in_use = true;
  slots_[owner].done = slots_[owner].epoch - 1;
  return owner;
}

owner_id stream_slots::add() {
  const owner_id owner = take();
  ++in_use_;
  return owner;
}

owner_id stream_slots::add_stream(stream_ref stream, std::uint64_t key, std::uint64_t foreign, bool by_handle) {
  owner_id& named = by_key_[key];
  owner_id* const latest = by_handle ? &by_handle_[number_of(stream)] : nullptr;
  named = add();
  if (latest != nullptr) *latest = named;
  stream_slot& slot = slots_[named];
  slot.stream = stream;
  slot.key = key;
  slot.foreign = foreign;
  return named;
}

owner_id stream_slots::add_graph(owner_id origin) {
  owner_id& named = graphs_[next_graph_];
  named = take();
  heap_.pieces().begin_region(named);
  stream_slot& graph = slots_[named];
  const stream_slot& capturing = slots_[origin];
  graph.represents = stream_slot::kind::graph;
  graph.key = next_graph_++;
  graph.stream = capturing.stream;
  graph.foreign = capturing.foreign;
  graph.captured.origin_key = capturing.is_graph() ? capturing.captured.origin_key : capturing.key;
  return named;
}

void stream_slots::remove(owner_id owner) noexcept {
  stream_slot& slot = slots_[owner];
  if (slot.is_graph()) {
    graphs_.erase(slot.key);
  } else {
    --in_use_;
  }
  if (latest(slot.stream) == owner) by_handle_.erase(number_of(slot.stream));
  const std::uint64_t next_epoch = slot.epoch + 1;
  const bool is_watched = slot.is_watched;
  slot = stream_slot{};
  slot.epoch = next_epoch;
  slot.is_watched = is_watched;
  heap_.remove_owner(owner);
}

std::uint64_t stream_slots::metadata_bytes() const noexcept {
  std::uint64_t bytes = slots_.capacity() * sizeof(stream_slot) +
                        (by_key_.size() + by_handle_.size() + graphs_.size()) * 40 +  // about: a node and its bucket
                        watched_.capacity() * sizeof(owner_id);
  for (const stream_slot& s : slots_) {
    bytes += s.fences.capacity() * sizeof(stream_slot::pending) + s.waited.size() * 40;
  }
  return bytes;
}

}  // namespace gpumem
