#include "trimmer.hpp"

#include <fmt/format.h>

#include "log.hpp"

namespace gpumem {

std::uint64_t trimmer::return_idle(arena_lock& lock, std::uint64_t bytes) {
  if (in_.paged()) return pager_.return_pages(lock, bytes);
  std::uint64_t returned = 0;
  while (returned < bytes && in_.streams.captures() == 0) {
    segment_index best = 0;
    std::uint64_t most = 0;
    for (segment_index s = 0; s < in_.blocks.segments().size(); ++s) {
      if (in_.blocks.segment_idle(s) && in_.blocks.segments()[s].bytes > most) {
        most = in_.blocks.segments()[s].bytes;
        best = s;
      }
    }
    if (most == 0) break;
    in_.blocks.remove_segment(best);
    const backed_segment going = in_.segments.take(best);
    status taken;
    {
      const blocking_call waits{in_.calls.waits, lock};
      taken = return_segment(in_.on, going);
      if (!taken) {
        log_if_possible([&] {
          return fmt::format("pool {}: {} leaked, the driver did not take a segment back: {}", in_.config.name,
                             format_bytes(going.bytes), taken.message());
        });
      }
    }
    if (!taken) break;
    in_.segments.returned(going);
    in_.cap.give_back(going.bytes);
    returned += going.bytes;
    ++in_.counts.returned_segments;
  }
  return returned;
}

trim_result trimmer::trim(arena_lock& lock, std::uint64_t bytes) {
  trim_result out;
  fences_.poll(lock);
  in_.caches.reclaim_all();
  const bool allowed = in_.decides.gives_back(give_back::trim, in_.view());
  if (allowed) {
    out.returned_bytes = return_idle(lock, bytes);
    if (out.returned_bytes < bytes && fences_.wait_for_all(lock)) {
      out.returned_bytes += return_idle(lock, bytes - out.returned_bytes);
    }
  }
  explain_rest(allowed, &out);
  return out;
}

// Of a paged segment: pages that are idle, or wait for work to be so, may go; the rest stands beside live blocks.
void trimmer::explain_pages(const heap_segment& segment, bool allowed, trim_result* out) const {
  std::uint64_t idle_bytes = 0;
  for (block_index i = segment.first; i != no_block; i = in_.blocks.at(i).above) {
    const block& b = in_.blocks.at(i);
    const bool waits = b.state == block_state::fenced || (b.state == block_state::free && b.owner != idle_owner);
    if (waits) (allowed ? out->pending_bytes : out->kept_bytes) += b.bytes;
    if (b.state == block_state::free && b.owner == idle_owner) idle_bytes += b.bytes;
  }
  std::uint64_t whole = 0;
  for (const idle_stretch& stretch : in_.pages.map().idle(in_.blocks, 0, 0)) {
    if (stretch.begin >= segment.begin && stretch.begin < segment.begin + segment.bytes) whole += stretch.bytes;
  }
  out->in_use_bytes += idle_bytes - whole;
  if (!allowed)
    out->kept_bytes += whole;
  else if (in_.streams.captures() > 0)
    out->pending_bytes += whole;
}

void trimmer::explain_rest(bool allowed, trim_result* out) const {
  for (segment_index s = 0; s < in_.blocks.segments().size(); ++s) {
    const heap_segment& segment = in_.blocks.segments()[s];
    if (segment.bytes == 0) continue;
    if (in_.segments[s].kind == segment_kind::paged) {
      explain_pages(segment, allowed, out);
      continue;
    }
    std::uint64_t free_bytes = 0;
    bool in_use = false;
    for (block_index i = segment.first; i != no_block; i = in_.blocks.at(i).above) {
      const block_state state = in_.blocks.at(i).state;
      if (state == block_state::free || state == block_state::fenced) {
        free_bytes += in_.blocks.at(i).bytes;
      } else {
        in_use = true;
      }
    }
    if (in_use) {
      out->in_use_bytes += free_bytes;
    } else if (!allowed) {
      out->kept_bytes += free_bytes;
    } else if (!in_.blocks.segment_idle(s) || in_.streams.captures() > 0) {
      out->pending_bytes += free_bytes;
    }
  }
}

}  // namespace gpumem
