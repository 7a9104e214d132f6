#include "trimmer.hpp"

#include <fmt/format.h>

#include "log.hpp"

namespace gpumem {

template <typename Condition>
std::optional<segment_index> trimmer::largest_where(const Condition& holds) const {
  std::optional<segment_index> largest;
  std::uint64_t most = 0;
  for (segment_index s = 0; s < state_.blocks.segments().size(); ++s) {
    const std::uint64_t bytes = state_.blocks.segments()[s].bytes;
    if (bytes <= most || !holds(s)) continue;
    most = bytes;
    largest = s;
  }
  return largest;
}

std::uint64_t trimmer::return_idle(arena_lock& lock, std::uint64_t bytes, const wait_deadline& deadline) {
  if (state_.paged()) return pager_.return_pages(lock, bytes, deadline);
  std::uint64_t returned = 0;
  while (returned < bytes && state_.may_give_back(lock)) {
    const std::optional<segment_index> largest =
        largest_where([&](segment_index segment) GPUMEM_UNDER_LOCK { return state_.blocks.segment_idle(segment); });
    const std::uint64_t went = largest ? return_segment(lock, *largest) : 0;
    if (went == 0) break;
    returned += went;
  }
  return returned;
}

bool trimmer::would_return(std::uint64_t grow_bytes) const { return next_before_growth(grow_bytes, false).has_value(); }

// Goes on beyond the growth, as far as a segment's own bytes are worth its calls: the rest would have the sizes of
// earlier requests, and smaller requests would cut it up and keep it from going back later.
// Ends when another thread has freed memory or called the driver, a sign that the device has work again.
std::uint64_t trimmer::return_before_growth(arena_lock& lock, std::uint64_t grow_bytes) {
  std::uint64_t returned = 0;
  const std::uint64_t changes_before = lock.changes_by_others();
  while (state_.may_give_back(lock) && lock.changes_by_others() == changes_before) {
    const std::optional<segment_index> next = next_before_growth(grow_bytes, true);
    const std::uint64_t went = next ? return_segment(lock, *next) : 0;
    if (went == 0) break;
    returned += went;
    state_.pool_policy.returned(state_.view(), went);
    grow_bytes = UINT64_MAX;
  }
  return returned;
}

trimmer::idle_segments trimmer::idle() const {
  idle_segments all;
  for (segment_index s = 0; s < state_.blocks.segments().size(); ++s) {
    if (state_.blocks.segments()[s].bytes == 0 || !state_.blocks.segment_idle(s)) continue;
    ++all.count;
    all.bytes += state_.blocks.segments()[s].bytes;
  }
  return all;
}

// The largest segment that the policy would give back: one that is idle, or one that is as soon as its fences are done.
std::optional<segment_index> trimmer::next_before_growth(std::uint64_t grow_bytes, bool is_idle) const {
  const pool_view view = state_.view();
  return largest_where([&](segment_index index) GPUMEM_UNDER_LOCK {
    const heap_segment& segment = state_.blocks.segments()[index];
    if (is_idle && !state_.blocks.segment_idle(index)) return false;
    const auto may_become_idle = [&](const block& each) GPUMEM_UNDER_LOCK {
      return each.state == block_state::free &&
             (each.owner == idle_owner || state_.streams[each.owner].serves_others());
    };
    block_index i = segment.first;
    while (i != no_block && may_become_idle(state_.blocks.at(i))) i = state_.blocks.at(i).next;
    return i == no_block && state_.pool_policy.returns_before_growth(view, segment.bytes, grow_bytes);
  });
}

// Returns the bytes, or 0 if the driver did not take the segment.
std::uint64_t trimmer::return_segment(arena_lock& lock, segment_index segment) {
  const address going = state_.blocks.segments()[segment].begin;
  const std::uint64_t bytes = state_.blocks.segments()[segment].bytes;
  state_.blocks.remove_segment(segment);
  state_.in_transit_bytes += bytes;
  const status taken = state_.calls.give_backs.run_unlocked(lock, [&] {
    state_.observers.removing(going, bytes, false);
    return state_.own_device.free(going);
  });
  if (!taken) {
    log_if_possible([&] {
      return fmt::format("pool {}: {} leaked, the driver did not take a segment back: {}", state_.config.name,
                         format_bytes(bytes), taken.message());
    });
    return 0;
  }
  state_.in_transit_bytes -= bytes;
  state_.pool_budget.give_back(bytes);
  ++state_.counts.returned_segments;
  state_.note(slow_event::segment_returned, bytes);
  return bytes;
}

trim_result trimmer::trim(arena_lock& lock, std::uint64_t bytes) {
  trim_result trimmed;
  const wait_deadline deadline{state_.own_device, state_.config.free_wait_ns};
  const context_events permit{state_.streams.captures()};  // the program asked for its memory
  fences_.poll(lock);
  if (state_.caches.reclaim_all()) fences_.poll(lock);  // deferred frees come with fences of their own
  const bool allowed = state_.pool_policy.gives_back(give_back::trim, state_.view());
  if (allowed) {
    trimmed.returned_bytes = return_idle(lock, bytes, deadline);
    // A block whose uses are done is first free for its own stream, and idle only behind another fence.
    while (trimmed.returned_bytes < bytes && deadline.left_ns() != 0 && fences_.wait_for_all(lock, deadline)) {
      trimmed.returned_bytes += return_idle(lock, bytes - trimmed.returned_bytes, deadline);
    }
  }
  explain_rest(allowed, !state_.may_give_back(lock), &trimmed);
  return trimmed;
}

// `withheld`: a capture forbids giving back.
void trimmer::explain_rest(bool allowed, bool withheld, trim_result* trimmed) const {
  for (const heap_segment& segment : state_.blocks.segments()) {
    if (segment.bytes == 0) continue;
    std::uint64_t idle = 0;
    std::uint64_t waiting = 0;
    bool in_use = false;
    for (block_index i = segment.first; i != no_block; i = state_.blocks.at(i).next) {
      const block& b = state_.blocks.at(i);
      if (b.state == block_state::free && b.owner == idle_owner) {
        idle += b.bytes;
      } else if (b.state == block_state::free || b.state == block_state::fenced) {
        waiting += b.bytes;
      } else {
        in_use = in_use || has_memory(b);
      }
    }
    // A segment goes as a whole; a paged one page by page, where only idle or waiting memory lies on the page.
    const std::uint64_t may_go = segment.paged ? idle_pages_of(segment) + waiting : in_use ? 0 : idle + waiting;
    trimmed->in_use_bytes += idle + waiting - may_go;
    if (!allowed)
      trimmed->kept_bytes += may_go;
    else if (withheld || (waiting != 0 && !segment.paged))
      trimmed->pending_bytes += may_go;
    else if (segment.paged)
      trimmed->pending_bytes += waiting;
  }
}

std::uint64_t trimmer::idle_pages_of(const heap_segment& segment) const {
  std::uint64_t bytes = 0;
  for (const free_stretch& stretch : state_.pages.map().stretches(state_.blocks, idle_owner)) {
    if (stretch.begin >= segment.begin && stretch.begin < segment.begin + segment.bytes) bytes += stretch.bytes;
  }
  return bytes;
}

}  // namespace gpumem
