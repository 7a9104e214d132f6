// What a pool says of itself: statistics, and the proof that nothing was lost.
#include <fmt/format.h>

#include <algorithm>

#include "pool.hpp"

namespace gpumem {

pool_view pool::view() const {
  return {.total_bytes = config_.total_bytes,
          .free_at_start_bytes = config_.free_at_start_bytes,
          .limit_bytes = budget_.limit(),
          .reserved_bytes = budget_.reserved(),
          .live_bytes = cache_.live_bytes(),
          .peak_live_bytes = cache_.peak_live_bytes(),
          .granularity_bytes = device_.info().granularity_bytes,
          .moved_bytes = counts_.remapped_pages * device_.info().page_bytes};
}

// A range of addresses without memory stands for no segment.
bool pool::nothing_behind(segment_index s) const {
  return backed_[s].kind == segment_kind::paged && heap_.at(heap_.segments()[s].first).bytes == backed_[s].bytes &&
         heap_.at(heap_.segments()[s].first).state == block_state::hollow;
}

statistics pool::stats() {
  const guard lock{mutex_};
  const auto stopped = cache_.stop();
  return stats_of_stopped();
}

// Requires that every cache is stopped.
statistics pool::stats_of_stopped() const {
  statistics s = counts_;
  const heap_totals& t = heap_.totals();
  s.reserved_bytes = t.segment_bytes + lost_bytes_;
  const block_cache::sums cached = cache_.add_up();
  s.thread_cached_bytes = cached.held_bytes;
  s.allocations += cached.allocations;
  s.frees += cached.frees;
  s.requested_bytes += cached.requested_bytes;
  s.live_bytes = t.live_bytes - s.thread_cached_bytes;
  s.peak_live_bytes = cached.peak_live_bytes;
  s.cached_bytes = t.cached_bytes;
  s.fenced_bytes = t.fenced_bytes;
  s.idle_bytes = t.idle_bytes;
  s.leaked_bytes = t.leaked_bytes + lost_bytes_;
  s.limit_bytes = budget_.limit();
  s.largest_free_bytes = heap_.largest_free();
  for (const block_index i : uses_.waiting()) s.largest_free_bytes = std::max(s.largest_free_bytes, heap_.at(i).bytes);
  s.metadata_bytes += cached.metadata_bytes + heap_.metadata_bytes() + streams_.metadata_bytes() +
                      uses_.metadata_bytes() + backed_.capacity() * sizeof(backed_segment) + pages_.metadata_bytes() +
                      lookahead_.metadata_bytes() + planned_.metadata_bytes();
  s.live_blocks = t.live_blocks - cached.held_blocks;
  s.free_blocks = t.free_blocks + uses_.waiting().size();
  for (segment_index i = 0; i < backed_.size(); ++i)
    s.segments += backed_[i].bytes != 0 && !nothing_behind(i) ? 1U : 0U;
  s.streams = streams_.in_use();
  s.fences = streams_.fences_recorded();
  s.device_waits = streams_.device_waits();
  return s;
}

block_view pool::view_of(block_index i) const {
  const block& b = heap_.at(i);
  block_view out{.begin = b.begin, .bytes = b.bytes};
  if (b.owner != idle_owner) {
    const stream_slot& slot = streams_[b.owner];
    out.stream = slot.stream;
    if (slot.is_graph && !slot.gone) out.region = slot.key;
  }
  using state = block_view::state;
  switch (b.state) {
    case block_state::live: {
      const owner_word held = held_as(i);
      out.is = held.held_by() == holder::program ? state::live : state::cached;
      if (out.is == state::live) out.requested_bytes = b.bytes - held.slack_bytes();
      break;
    }
    case block_state::free:
      out.is = b.owner == idle_owner ? state::idle : state::cached;
      break;
    case block_state::fenced:
      out.is = state::fenced;
      break;
    case block_state::leaked:
      out.is = state::leaked;
      break;
    case block_state::hollow:
    case block_state::unused:
      out.is = state::unbacked;
      break;
  }
  return out;
}

std::vector<segment_view> pool::segments() const {
  const guard lock{mutex_};
  const auto stopped = cache_.stop();
  std::vector<segment_view> out;
  for (segment_index s = 0; s < heap_.segments().size(); ++s) {
    const heap_segment& segment = heap_.segments()[s];
    if (segment.bytes == 0) continue;
    segment_view& to = out.emplace_back();
    to.begin = segment.begin;
    to.bytes = segment.bytes;
    to.paged = backed_[s].kind == segment_kind::paged;
    for (block_index i = segment.first; i != no_block; i = heap_.at(i).above) to.blocks.push_back(view_of(i));
  }
  std::ranges::sort(out, {}, &segment_view::begin);
  return out;
}

void pool::reset_peak_reserved() {
  const guard lock{mutex_};
  counts_.peak_reserved_bytes = budget_.reserved();
}

status pool::check() const {
  const guard lock{mutex_};
  const auto stopped = cache_.stop();
  return check_stopped();
}

status pool::check_stopped() const {
  if (status ok = heap_.validate(); !ok) return ok;
  const auto broken = [this](std::string_view what, std::uint64_t a, std::uint64_t b) {
    return status{errc::corrupt, fmt::format("pool {}: {}: {} and {}", config_.name, what, a, b)};
  };
  const statistics s = stats_of_stopped();
  const std::uint64_t sum =
      s.live_bytes + s.thread_cached_bytes + s.cached_bytes + s.fenced_bytes + s.idle_bytes + s.leaked_bytes;
  if (sum != s.reserved_bytes) return broken("reserved bytes and the sum of the states differ", s.reserved_bytes, sum);
  // Whoever grows has reserved what the heap does not have yet.
  if (growth_.taken() ? budget_.reserved() < s.reserved_bytes : budget_.reserved() != s.reserved_bytes) {
    return broken("budget and reserved bytes differ", budget_.reserved(), s.reserved_bytes);
  }
  if (cache_.pointers().size() != heap_.totals().live_blocks)
    return broken("pointer slots and blocks out of the heap differ", cache_.pointers().size(),
                  heap_.totals().live_blocks);
  if (s.requested_bytes > s.live_bytes) return broken("more requested than live", s.requested_bytes, s.live_bytes);
  std::uint64_t requested = 0;
  std::uint64_t cached = 0;
  std::vector<std::uint32_t> references(streams_.end());
  for (segment_index seg = 0; seg < heap_.segments().size(); ++seg) {
    const heap_segment& segment = heap_.segments()[seg];
    if (segment.bytes == 0) continue;
    if (backed_[seg].begin != segment.begin || backed_[seg].bytes != segment.bytes) {
      return broken("a segment and its backing differ", segment.begin, backed_[seg].begin);
    }
    for (block_index i = segment.first; i != no_block; i = heap_.at(i).above) {
      const block& b = heap_.at(i);
      if (b.state != block_state::live && b.state != block_state::fenced) continue;
      if (b.state == block_state::live) {
        const pointer_map::lookup seen = cache_.pointers().find(b.begin);
        const owner_word held = seen.word();
        if (held.held_by() == holder::nobody || cache_.pointers().block_of(seen.at) != i)
          return broken("a live block that its address does not find", b.begin, i);
        const bool sized = held.plainly_live() || held.held_by() == holder::cache;
        if (sized && held.bytes() != b.bytes)
          return broken("a live block and its owner word differ", b.bytes, held.bits());
        if (held.held_by() == holder::program)
          requested += b.bytes - held.slack_bytes();
        else
          cached += b.bytes;
      }
      ++references[b.owner];
      uses_.count_references(i, &references);
    }
  }
  if (requested != s.requested_bytes) return broken("requested bytes and their sum", s.requested_bytes, requested);
  if (cached != s.thread_cached_bytes) return broken("cached bytes and their sum", s.thread_cached_bytes, cached);
  if (status ok = check_caches(); !ok) return ok;
  if (status ok = check_pages(); !ok) return ok;
  for (owner_id o = 1; o < streams_.end(); ++o) {
    if (!streams_[o].in_use && references[o] != 0)
      return broken("blocks of a stream that is forgotten", o, references[o]);
    if (streams_[o].in_use && streams_[o].references < references[o]) {
      return broken("a stream with fewer references than blocks", streams_[o].references, references[o]);
    }
  }
  return {};
}

// Every block in a bin or in the depot is a cache's, has the bin's size and the stream's owner.
status pool::check_caches() const {
  status first;
  cache_.for_each_held([&](slot_index held, std::uint32_t units, owner_id o) GPUMEM_REQUIRES(mutex_) {
    const owner_word w = cache_.pointers()[held].read();
    const block& b = heap_.at(cache_.pointers().block_of(held));
    if (!first.ok() || (w.held_by() == holder::cache && w.units() == units && w.owner() == o && b.owner == o)) return;
    first = {errc::corrupt,
             fmt::format("pool {}: a cache holds {:#x}, which is not its own: owner word {:#x}, owner {}", config_.name,
                         b.begin, w.bits(), o)};
  });
  return first;
}

}  // namespace gpumem
