// Statistics, block views and invariant checks of the arena.
#include <fmt/format.h>

#include <algorithm>

#include "arena.hpp"

namespace gpumem {
namespace {

block_view::state state_of(const block& block) noexcept {
  using state = block_view::state;
  switch (block.state) {
    case block_state::live:
      return state::live;
    case block_state::free:
      return block.owner == idle_owner ? state::idle : state::cached;
    case block_state::fenced:
      return state::fenced;
    case block_state::leaked:
      return state::leaked;
    default:
      return state::unbacked;
  }
}

}  // namespace

statistics arena::figures() const {
  statistics s = state_.counts;
  const heap_totals& t = state_.blocks.totals();
  const std::uint64_t in_transit_bytes = state_.in_transit_bytes + state_.pages.in_transit_bytes();
  s.reserved_bytes = t.segment_bytes + in_transit_bytes;
  s.live_bytes = t.live_bytes;
  s.cached_bytes = t.cached_bytes;
  s.fenced_bytes = t.fenced_bytes;
  s.idle_bytes = t.idle_bytes;
  s.leaked_bytes = t.leaked_bytes + in_transit_bytes;
  s.limit_bytes = state_.pool_budget.limit();
  s.largest_free_bytes = state_.blocks.largest_free();
  for (const block_index i : state_.uses.waiting())
    s.largest_free_bytes = std::max(s.largest_free_bytes, state_.blocks.at(i).bytes);
  s.metadata_bytes += state_.blocks.metadata_bytes() + state_.streams.metadata_bytes() + state_.uses.metadata_bytes() +
                      state_.pages.map().metadata_bytes() + plan_executor_.metadata_bytes();
  s.live_blocks = t.live_blocks;
  s.free_blocks = t.free_blocks + state_.uses.waiting().size();
  s.segments = t.segments;
  s.streams = state_.streams.in_use();
  s.fences = state_.streams.fences_recorded();
  return s;
}

bool arena::mapped(block_index index) const { return state_.blocks.segments()[state_.blocks.at(index).segment].paged; }

block_view arena::view_of(block_index index) const {
  const block& b = state_.blocks.at(index);
  block_view view{.begin = b.begin, .bytes = b.bytes, .is = state_of(b)};
  if (b.owner != idle_owner) {
    const stream_slot& slot = state_.streams[b.owner];
    view.stream = slot.stream;
    if (b.in_region) view.region = slot.key;
  }
  return view;
}

std::vector<segment_view> arena::segments() const {
  std::vector<segment_view> views;
  for (segment_index s = 0; s < state_.blocks.segments().size(); ++s) {
    const heap_segment& segment = state_.blocks.segments()[s];
    if (segment.bytes == 0) continue;
    segment_view& view = views.emplace_back();
    view.begin = segment.begin;
    view.bytes = segment.bytes;
    view.paged = segment.paged;
    for (block_index i = segment.first; i != no_block; i = state_.blocks.at(i).next) view.blocks.push_back(view_of(i));
  }
  std::ranges::sort(views, {}, &segment_view::begin);
  return views;
}

status arena::broken(std::string_view message, std::uint64_t first_value, std::uint64_t second_value) const {
  return {errc::corrupt, fmt::format("pool {}: {}: {} and {}", config_.name, message, first_value, second_value)};
}

status arena::check() const {
  if (status ok = state_.blocks.validate(); !ok) return ok;
  const statistics s = figures();
  const std::uint64_t sum = s.live_bytes + s.cached_bytes + s.fenced_bytes + s.idle_bytes + s.leaked_bytes;
  if (sum != s.reserved_bytes) return broken("reserved bytes and the sum of the states differ", s.reserved_bytes, sum);
  // A growing thread has reserved bytes that the heap does not have yet.
  const std::uint64_t held = state_.pool_budget.reserved();
  if (state_.gate.taken() ? held < s.reserved_bytes : held != s.reserved_bytes) {
    return broken("budget and reserved bytes differ", held, s.reserved_bytes);
  }
  if (state_.paged()) {
    if (status ok = state_.pages.check(); !ok) return ok;
  }
  return check_references();
}

// Each live or fenced block holds a reference to the slot of its owner and of each of its users.
status arena::check_references() const {
  std::vector<std::uint32_t> references(state_.streams.end());
  for (const heap_segment& segment : state_.blocks.segments()) {
    if (segment.bytes == 0) continue;
    for (block_index i = segment.first; i != no_block; i = state_.blocks.at(i).next) {
      const block& b = state_.blocks.at(i);
      if (b.state != block_state::live && b.state != block_state::fenced) continue;
      ++references[b.owner];
      state_.uses.count_references(i, &references);
    }
  }
  for (owner_id owner = 1; owner < state_.streams.end(); ++owner) {
    const stream_slot& slot = state_.streams[owner];
    if (!slot.in_use && references[owner] != 0)
      return broken("blocks of a stream that is forgotten", owner, references[owner]);
    if (slot.in_use && slot.references < references[owner]) {
      return broken("a stream with fewer references than blocks", slot.references, references[owner]);
    }
  }
  return {};
}

}  // namespace gpumem
