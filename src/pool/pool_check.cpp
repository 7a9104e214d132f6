// Statistics and invariant checks of a pool.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "log.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

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

}  // namespace

// The owner word of a block in the heap's records; by default that of a block nobody holds.
owner_word pool::held_as(block_index index) const noexcept {
  if (index == no_block || arena_.blocks().at(index).state != block_state::live) return {};
  return cache_.pointers().find(arena_.blocks().at(index).begin).word();
}

status pool::not_in_live_block(address pointer) const {
  return {errc::unknown_pointer, fmt::format("{:#x} is not in a live block of pool {}", pointer, config_.name)};
}

void pool::count_misuse() {
  const arena_lock lock{arena_.mutex()};
  ++arena_.counts().misuses;
}

bool pool::contains(address pointer) const {
  const arena_lock lock{arena_.mutex()};
  return arena_.blocks().containing(pointer) != no_block;
}

result<block_info> pool::describe(address pointer) const {
  const arena_lock lock{arena_.mutex()};
  const block_index i = arena_.blocks().containing(pointer);
  const owner_word held = held_as(i);
  if (held.held_by() != holder::program) return not_in_live_block(pointer);
  const block& b = arena_.blocks().at(i);
  const heap_segment& s = arena_.blocks().segments()[b.segment];
  return block_info{.begin = b.begin,
                    .bytes = b.bytes,
                    .requested_bytes = b.bytes - held.slack_bytes(),
                    .segment_begin = s.begin,
                    .segment_bytes = s.bytes,
                    .device = config_.ordinal,
                    .mapped = arena_.mapped(i)};
}

statistics pool::stats() {
  const arena_lock lock{arena_.mutex()};
  const auto stopped = cache_.stop();
  return stats_of_stopped();
}

// Requires that every cache is stopped.
statistics pool::stats_of_stopped() const {
  statistics s = arena_.figures();
  const block_cache::sums cached = cache_.add_up();
  s.thread_cached_bytes = cached.held_bytes;
  s.allocations += cached.allocations;
  s.frees += cached.frees;
  s.requested_bytes += cached.requested_bytes;
  s.live_bytes -= cached.held_bytes;
  s.peak_live_bytes = cached.peak_live_bytes;
  s.metadata_bytes += cached.metadata_bytes;
  s.live_blocks -= cached.held_blocks;
  return s;
}

std::vector<segment_view> pool::segments() const {
  const arena_lock lock{arena_.mutex()};
  const auto stopped = cache_.stop();
  return segments_of_stopped();
}

std::vector<segment_view> pool::segments_of_stopped() const {
  std::vector<segment_view> views = arena_.segments();
  for (segment_view& segment : views) {
    for (block_view& b : segment.blocks) {
      if (b.is != block_view::state::live) continue;
      const owner_word held = cache_.pointers().find(b.begin).word();
      if (held.held_by() == holder::program)
        b.requested_bytes = b.bytes - held.slack_bytes();
      else
        b.is = block_view::state::cached;
    }
  }
  return views;
}

piece_statistics pool::pieces() const {
  const arena_lock lock{arena_.mutex()};
  const auto stopped = cache_.stop();
  return pieces_of_stopped();
}

// A cached block is split like a free one. Only caches with blocks that may be alone in their pieces are walked.
piece_statistics pool::pieces_of_stopped() const {
  const piece_counter& counter = arena_.blocks().pieces();
  const piece_totals& undivided = counter.totals();
  const heap_totals& totals = arena_.blocks().totals();
  const block_cache::sums cached = cache_.add_up();
  piece_statistics s{
      .pieces = undivided.pieces,
      .fenced_blocks = totals.fenced_blocks,
      .split_blocks = totals.free_blocks + totals.leaked_blocks + cached.held_blocks - undivided.undivided_free_blocks,
      .split_bytes = totals.cached_bytes + totals.idle_bytes + totals.leaked_bytes + cached.held_bytes -
                     undivided.undivided_free_bytes};
  if (cached.held_blocks != 0 && undivided.undivided_live_blocks != 0) {
    cache_.for_each_held([&](slot_index held, std::uint32_t units, owner_id) GPUMEM_UNDER_LOCK {
      if (!counter.is_undivided(cache_.pointers().block_of(held))) return;
      --s.split_blocks;
      s.split_bytes -= units * block_granularity;
    });
  }
  for (owner_id owner = 1; owner < arena_.streams().end(); ++owner) {
    if (!counter.is_region(owner)) continue;
    const region_totals& region = counter.of_region(owner);
    s.regions.push_back({arena_.streams()[owner].key, region.bytes, region.live_bytes});
  }
  return s;
}

pool_history pool::history() const {
  pool_history dump;
  std::vector<history_block> live_now;
  {
    const arena_lock lock{arena_.mutex()};
    const auto stopped = cache_.stop();
    dump.noted = cache_.history().noted();
    dump.events = cache_.history().latest();
    for (const heap_segment& segment : arena_.blocks().segments()) {
      if (segment.bytes == 0) continue;
      for (block_index i = segment.first; i != no_block; i = arena_.blocks().at(i).next) {
        const owner_word held = held_as(i);
        if (held.held_by() != holder::program) continue;
        const block& b = arena_.blocks().at(i);
        live_now.push_back({b.begin, b.bytes - held.slack_bytes(), arena_.streams()[b.owner].stream});
      }
    }
  }
  dump.live_before = live_before(dump.events, std::move(live_now));
  return dump;
}

std::vector<flight_event> pool::flight() const {
  const arena_lock lock{arena_.mutex()};
  return arena_.flight().latest();
}

void pool::reset_peak_reserved() {
  const arena_lock lock{arena_.mutex()};
  arena_.counts().peak_reserved_bytes = arena_.pool_budget().reserved();
}

status pool::check() const {
  const arena_lock lock{arena_.mutex()};
  const auto stopped = cache_.stop();
  if (status ok = arena_.check(); !ok) return ok;
  if (status ok = check_blocks(stats_of_stopped()); !ok) return ok;
  piece_statistics seen;
  for (const segment_view& segment : segments_of_stopped()) add_pieces(segment, &seen);
  if (status ok = compare_pieces(config_.name, pieces_of_stopped(), seen); !ok) return ok;
  return check_caches();
}

// Checks that every block that is out is found by its address, in the state of its owner word.
status pool::check_blocks(const statistics& figures) const {
  const auto broken = [this](std::string_view message, std::uint64_t first_value, std::uint64_t second_value) {
    return status{errc::corrupt,
                  fmt::format("pool {}: {}: {} and {}", config_.name, message, first_value, second_value)};
  };
  const heap& blocks = arena_.blocks();
  const pointer_map& pointers = cache_.pointers();
  if (pointers.size() != blocks.totals().live_blocks)
    return broken("pointer slots and blocks out of the heap differ", pointers.size(), blocks.totals().live_blocks);
  if (figures.requested_bytes > figures.live_bytes)
    return broken("more requested than live", figures.requested_bytes, figures.live_bytes);
  std::uint64_t requested = 0;
  std::uint64_t cached = 0;
  for (const heap_segment& segment : blocks.segments()) {
    if (segment.bytes == 0) continue;
    for (block_index i = segment.first; i != no_block; i = blocks.at(i).next) {
      const block& b = blocks.at(i);
      if (b.state != block_state::live) continue;
      const pointer_map::lookup seen = pointers.find(b.begin);
      const owner_word held = seen.word();
      if (held.held_by() == holder::nobody || pointers.block_of(seen.index) != i)
        return broken("a live block that its address does not find", b.begin, i);
      const bool sized = held.plainly_live() || held.held_by() == holder::cache;
      if (sized && held.bytes() != b.bytes)
        return broken("a live block and its owner word differ", b.bytes, held.bits());
      if (held.held_by() == holder::program)
        requested += b.bytes - held.slack_bytes();
      else
        cached += b.bytes;
    }
  }
  if (requested != figures.requested_bytes)
    return broken("requested bytes and their sum", figures.requested_bytes, requested);
  if (cached != figures.thread_cached_bytes)
    return broken("cached bytes and their sum", figures.thread_cached_bytes, cached);
  return {};
}

// Checks that every block in a bin or the depot is held by a cache, with the bin's size and the stream's owner.
status pool::check_caches() const {
  status first;
  cache_.for_each_held([&](slot_index held, std::uint32_t units, owner_id owner) GPUMEM_UNDER_LOCK {
    const owner_word w = cache_.pointers()[held].read();
    const block& b = arena_.blocks().at(cache_.pointers().block_of(held));
    if (!first.ok() || (w.held_by() == holder::cache && w.units() == units && w.owner() == owner && b.owner == owner))
      return;
    first = {errc::corrupt,
             fmt::format("pool {}: a cache holds {:#x}, which is not its own: owner word {:#x}, owner {}", config_.name,
                         b.begin, w.bits(), owner)};
  });
  return first;
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
