// Statistics, views and invariant checks of a pool.
#include <fmt/format.h>

#include <algorithm>

#include "arena.hpp"
#include "log.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

block_view::state state_of(const block& block, const owner_word& held) noexcept {
  using state = block_view::state;
  switch (block.state) {
    case block_state::live:
      return held.held_by() == holder::program ? state::live : state::cached;
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

block_view view_of(const arena& pool_arena, block_index index) GPUMEM_UNDER_LOCK {
  const block& b = pool_arena.state.blocks.at(index);
  const owner_word held = pool_arena.held_as(index);
  block_view view{.begin = b.begin, .bytes = b.bytes, .is = state_of(b, held)};
  if (view.is == block_view::state::live) view.requested_bytes = b.bytes - held.slack_bytes();
  if (b.owner != idle_owner) {
    const stream_slot& slot = pool_arena.state.streams[b.owner];
    view.stream = slot.stream;
    if (b.in_region) view.region = slot.key;
  }
  return view;
}

std::vector<segment_view> segments_of(const arena& pool_arena) GPUMEM_UNDER_LOCK {
  std::vector<segment_view> views;
  for (const heap_segment& segment : pool_arena.state.blocks.segments()) {
    if (segment.bytes == 0) continue;
    segment_view& view = views.emplace_back();
    view.begin = segment.begin;
    view.bytes = segment.bytes;
    view.paged = segment.paged;
    for (block_index i = segment.first; i != no_block; i = pool_arena.state.blocks.at(i).next)
      view.blocks.push_back(view_of(pool_arena, i));
  }
  std::ranges::sort(views, {}, &segment_view::begin);
  return views;
}

// A cached block is split like a free one. Only caches with blocks that may be alone in their pieces are walked.
piece_statistics pieces_of(const arena& pool_arena) GPUMEM_UNDER_LOCK {
  const arena_state& state = pool_arena.state;
  const piece_counter& counter = state.blocks.pieces();
  const piece_totals& undivided = counter.totals();
  const heap_totals& totals = state.blocks.totals();
  const block_cache::sums cached = state.caches.add_up();
  piece_statistics s{
      .pieces = undivided.pieces,
      .fenced_blocks = totals.fenced_blocks,
      .split_blocks = totals.free_blocks + totals.leaked_blocks + cached.held_blocks - undivided.undivided_free_blocks,
      .split_bytes = totals.cached_bytes + totals.idle_bytes + totals.leaked_bytes + cached.held_bytes -
                     undivided.undivided_free_bytes};
  if (cached.held_blocks != 0 && undivided.undivided_live_blocks != 0) {
    state.caches.for_each_held([&](slot_index held, std::uint32_t units, owner_id) GPUMEM_UNDER_LOCK {
      if (!counter.is_undivided(state.caches.pointers().block_of(held))) return;
      --s.split_blocks;
      s.split_bytes -= units * block_granularity;
    });
  }
  for (owner_id owner = 1; owner < state.streams.slots().end(); ++owner) {
    if (!counter.is_region(owner)) continue;
    const region_totals& region = counter.of_region(owner);
    s.regions.push_back({state.streams[owner].key, region.bytes, region.live_bytes});
  }
  return s;
}

/// The pieces of a segment, by a walk over its blocks.
void add_pieces(const segment_view& segment, piece_statistics* counted) {
  using state = block_view::state;
  const auto end = segment.blocks.end();
  for (auto first = segment.blocks.begin(); first != end;) {
    if (first->is == state::unbacked) {
      ++first;
      continue;
    }
    const auto next = std::find_if(first, end, [&](const block_view& candidate) {
      return candidate.is == state::unbacked || candidate.region != first->region;
    });
    ++counted->pieces;
    const bool divided = next - first > 1;
    for (; first != next; ++first) {
      if (first->is == state::fenced) ++counted->fenced_blocks;
      if (first->is == state::live || first->is == state::fenced || !divided) continue;
      ++counted->split_blocks;
      counted->split_bytes += first->bytes;
    }
  }
}

status compare_pieces(const std::string& pool, const piece_statistics& counted, const piece_statistics& seen) {
  const auto figures = [](const piece_statistics& listed) {
    return fmt::format("{} pieces, {} fenced, {} split blocks of {} bytes", listed.pieces, listed.fenced_blocks,
                       listed.split_blocks, listed.split_bytes);
  };
  if (figures(counted) == figures(seen)) return {};
  return {errc::corrupt,
          fmt::format("pool {}: {} are counted, and the segments have {}", pool, figures(counted), figures(seen))};
}

/// Calls `each(index)` for every block.
template <typename Call>
void for_each_block(const heap& blocks, const Call& each) GPUMEM_UNDER_LOCK {
  for (const heap_segment& segment : blocks.segments()) {
    if (segment.bytes == 0) continue;
    for (block_index i = segment.first; i != no_block; i = blocks.at(i).next) each(i);
  }
}

}  // namespace

owner_word arena::held_as(block_index index) const noexcept {
  if (index == no_block || state.blocks.at(index).state != block_state::live) return {};
  return state.caches.pointers().find(state.blocks.at(index).begin).word();
}

statistics arena::figures() const {
  statistics s = state.counts;
  const heap_totals& t = state.blocks.totals();
  const block_cache::sums cached = state.caches.add_up();
  const std::uint64_t in_transit_bytes = state.in_transit_bytes + state.pages.in_transit_bytes();
  s.allocations += cached.allocations;
  s.frees += cached.frees;
  s.requested_bytes += cached.requested_bytes;
  s.peak_live_bytes = cached.peak_live_bytes;
  s.reserved_bytes = t.segment_bytes + in_transit_bytes;
  s.live_bytes = t.live_bytes - cached.held_bytes;
  s.thread_cached_bytes = cached.held_bytes;
  s.cached_bytes = t.cached_bytes;
  s.fenced_bytes = t.fenced_bytes;
  s.idle_bytes = t.idle_bytes;
  s.leaked_bytes = t.leaked_bytes + in_transit_bytes;
  s.limit_bytes = state.pool_budget.limit();
  s.largest_free_bytes = std::max(state.blocks.free_blocks().largest_bytes(), state.uses.largest_waiting());
  s.metadata_bytes += state.blocks.metadata_bytes() + state.streams.slots().metadata_bytes() +
                      state.streams.fences().metadata_bytes() + state.uses.metadata_bytes() +
                      state.pages.metadata_bytes() + places_.metadata_bytes() + planning.metadata_bytes() +
                      cached.metadata_bytes;
  s.live_blocks = t.live_blocks - cached.held_blocks;
  s.free_blocks = t.free_blocks + state.uses.waiting().size();
  s.segments = t.segments;
  s.streams = state.streams.slots().in_use();
  s.fences = state.streams.fences().count();
  return s;
}

status arena::broken(std::string_view message, std::uint64_t first_value, std::uint64_t second_value) const {
  return {errc::corrupt, fmt::format("pool {}: {}: {} and {}", state.config.name, message, first_value, second_value)};
}

status arena::check() const {
  if (status ok = state.blocks.validate(); !ok) return ok;
  const statistics s = figures();
  const std::uint64_t sum =
      s.live_bytes + s.thread_cached_bytes + s.cached_bytes + s.fenced_bytes + s.idle_bytes + s.leaked_bytes;
  if (sum != s.reserved_bytes) return broken("reserved bytes and the sum of the states differ", s.reserved_bytes, sum);
  // A growing thread has reserved bytes that the heap does not have yet.
  const std::uint64_t held = state.pool_budget.reserved();
  if (state.gate.taken() ? held < s.reserved_bytes : held != s.reserved_bytes) {
    return broken("budget and reserved bytes differ", held, s.reserved_bytes);
  }
  if (state.paged()) {
    if (status ok = state.pages.check(); !ok) return ok;
  }
  if (status ok = check_references(); !ok) return ok;
  if (status ok = check_blocks(s); !ok) return ok;
  piece_statistics seen;
  for (const segment_view& segment : segments_of(*this)) add_pieces(segment, &seen);
  if (status ok = compare_pieces(state.config.name, pieces_of(*this), seen); !ok) return ok;
  return check_caches();
}

// Each live or fenced block holds a reference to the slot of its owner and of each of its users, and a vacating run to
// that of its owner.
status arena::check_references() const {
  std::vector<std::uint32_t> references(state.streams.slots().end());
  for_each_block(state.blocks, [&](block_index index) GPUMEM_UNDER_LOCK {
    const block& b = state.blocks.at(index);
    if (b.state != block_state::live && b.state != block_state::fenced) return;
    ++references[b.owner];
    state.uses.count_references(index, &references);
  });
  for (const page_manager::vacating_run& each : state.pages.vacating()) ++references[each.owner];
  for (owner_id owner = 1; owner < state.streams.slots().end(); ++owner) {
    const stream_slot& slot = state.streams[owner];
    if (!slot.in_use && references[owner] != 0)
      return broken("blocks of a stream that is forgotten", owner, references[owner]);
    if (slot.in_use && slot.references < references[owner]) {
      return broken("a stream with fewer references than blocks", slot.references, references[owner]);
    }
  }
  return {};
}

// Checks that every block that is out is found by its address, in the state of its owner word.
status arena::check_blocks(const statistics& found) const {
  const pointer_map& pointers = state.caches.pointers();
  if (pointers.size() != state.blocks.totals().live_blocks) {
    return broken("pointer slots and blocks out of the heap differ", pointers.size(),
                  state.blocks.totals().live_blocks);
  }
  if (found.requested_bytes > found.live_bytes)
    return broken("more requested than live", found.requested_bytes, found.live_bytes);
  std::uint64_t requested = 0;
  std::uint64_t cached = 0;
  status first;
  for_each_block(state.blocks, [&](block_index index) GPUMEM_UNDER_LOCK {
    const block& b = state.blocks.at(index);
    if (b.state != block_state::live || !first.ok()) return;
    const pointer_map::lookup seen = pointers.find(b.begin);
    const owner_word held = seen.word();
    const bool sized = held.plainly_live() || held.held_by() == holder::cache;
    if (held.held_by() == holder::nobody || pointers.block_of(seen.index) != index)
      first = broken("a live block that its address does not find", b.begin, index);
    else if (sized && held.bytes() != b.bytes)
      first = broken("a live block and its owner word differ", b.bytes, held.bits());
    else if (held.held_by() == holder::program)
      requested += b.bytes - held.slack_bytes();
    else
      cached += b.bytes;
  });
  if (!first.ok()) return first;
  if (requested != found.requested_bytes)
    return broken("requested bytes and their sum", found.requested_bytes, requested);
  if (cached != found.thread_cached_bytes)
    return broken("cached bytes and their sum", found.thread_cached_bytes, cached);
  return {};
}

// Checks that every block in a bin or the depot is held by a cache, with the bin's size and the stream's owner.
status arena::check_caches() const {
  status first;
  state.caches.for_each_held([&](slot_index held, std::uint32_t units, owner_id owner) GPUMEM_UNDER_LOCK {
    const owner_word word = state.caches.pointers()[held].read();
    const block& b = state.blocks.at(state.caches.pointers().block_of(held));
    const bool is_right = word.held_by() == holder::cache && word.units() == units && word.owner() == owner;
    if (!first.ok() || (is_right && b.owner == owner)) return;
    first = {errc::corrupt,
             fmt::format("pool {}: a cache holds {:#x}, which is not its own: owner word {:#x}, owner {}",
                         state.config.name, b.begin, word.bits(), owner)};
  });
  return first;
}

void pool::count_misuse() {
  const arena_lock lock{state_.mutex};
  ++state_.counts.misuses;
}

bool pool::contains(address pointer) const {
  const arena_lock lock{state_.mutex};
  return state_.blocks.containing(pointer) != no_block;
}

result<block_info> pool::describe(address pointer) const {
  const arena_lock lock{state_.mutex};
  const block_index i = state_.blocks.containing(pointer);
  const owner_word held = arena_->held_as(i);
  if (held.held_by() != holder::program) return arena_->not_in_live_block(pointer);
  const block& b = state_.blocks.at(i);
  const heap_segment& s = state_.blocks.segments()[b.segment];
  return block_info{.begin = b.begin,
                    .bytes = b.bytes,
                    .requested_bytes = b.bytes - held.slack_bytes(),
                    .segment_begin = s.begin,
                    .segment_bytes = s.bytes,
                    .device = state_.config.ordinal,
                    .mapped = s.paged};
}

statistics pool::stats() const {
  const arena_lock lock{state_.mutex};
  const auto stopped = state_.caches.stop();
  return arena_->figures();
}

std::vector<segment_view> pool::segments() const {
  const arena_lock lock{state_.mutex};
  const auto stopped = state_.caches.stop();
  return segments_of(*arena_);
}

piece_statistics pool::pieces() const {
  const arena_lock lock{state_.mutex};
  const auto stopped = state_.caches.stop();
  return pieces_of(*arena_);
}

pool_history pool::history() const {
  pool_history dump;
  std::vector<history_block> live_now;
  {
    const arena_lock lock{state_.mutex};
    const auto stopped = state_.caches.stop();
    dump.noted = state_.caches.history().noted();
    dump.events = state_.caches.history().latest();
    for_each_block(state_.blocks, [&](block_index index) GPUMEM_UNDER_LOCK {
      const owner_word held = arena_->held_as(index);
      if (held.held_by() != holder::program) return;
      const block& b = state_.blocks.at(index);
      live_now.push_back({b.begin, b.bytes - held.slack_bytes(), state_.streams[b.owner].stream});
    });
  }
  dump.live_before = live_before(dump.events, std::move(live_now));
  return dump;
}

std::uint64_t pool::noted_events() const noexcept { return state_.caches.history().noted(); }

std::vector<flight_event> pool::flight() const {
  const arena_lock lock{state_.mutex};
  return state_.flight.latest();
}

void pool::reset_peak_reserved() {
  const arena_lock lock{state_.mutex};
  state_.counts.peak_reserved_bytes = state_.pool_budget.reserved();
}

status pool::check() const {
  const arena_lock lock{state_.mutex};
  const auto stopped = state_.caches.stop();
  return arena_->check();
}

std::string limit_result::to_string() const {
  std::string text = fmt::format("limit {}, {} reserved", format_bytes(limit_bytes), format_bytes(reserved_bytes));
  if (over_bytes == 0) return text;
  return text +
         fmt::format(
             ": {} over it could not be given back ({} live, {} free beside live blocks, {} waiting for work, {} "
             "kept by the policy)",
             format_bytes(over_bytes), format_bytes(live_bytes), format_bytes(trimmed.in_use_bytes),
             format_bytes(trimmed.pending_bytes), format_bytes(trimmed.kept_bytes));
}

}  // namespace gpumem
