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
    const address going = in_.blocks.segments()[best].begin;
    in_.blocks.remove_segment(best);
    in_.lost_bytes += most;
    const status taken = in_.waits.make(lock, [&] { return in_.on.free(going); });
    if (!taken) {
      log_if_possible([&] {
        return fmt::format("pool {}: {} leaked, the driver did not take a segment back: {}", in_.config.name,
                           format_bytes(most), taken.message());
      });
      break;
    }
    in_.lost_bytes -= most;
    in_.cap.give_back(most);
    returned += most;
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

void trimmer::explain_rest(bool allowed, trim_result* out) const {
  for (const heap_segment& segment : in_.blocks.segments()) {
    if (segment.bytes == 0) continue;
    std::uint64_t idle = 0;
    std::uint64_t waiting = 0;
    bool in_use = false;
    for (block_index i = segment.first; i != no_block; i = in_.blocks.at(i).above) {
      const block& b = in_.blocks.at(i);
      if (b.state == block_state::free && b.owner == idle_owner) {
        idle += b.bytes;
      } else if (b.state == block_state::free || b.state == block_state::fenced) {
        waiting += b.bytes;
      } else {
        in_use = in_use || b.state != block_state::unbacked;
      }
    }
    // A segment goes as a whole; of a paged one each page that nothing else lies on.
    const std::uint64_t may_go = segment.paged ? idle_pages_of(segment) + waiting : in_use ? 0 : idle + waiting;
    out->in_use_bytes += idle + waiting - may_go;
    if (!allowed)
      out->kept_bytes += may_go;
    else if (in_.streams.captures() > 0 || (waiting != 0 && !segment.paged))
      out->pending_bytes += may_go;
    else if (segment.paged)
      out->pending_bytes += waiting;
  }
}

std::uint64_t trimmer::idle_pages_of(const heap_segment& segment) const {
  std::uint64_t bytes = 0;
  for (const idle_stretch& stretch : in_.pages.map().idle(in_.blocks, 0, 0)) {
    if (stretch.begin >= segment.begin && stretch.begin < segment.begin + segment.bytes) bytes += stretch.bytes;
  }
  return bytes;
}

}  // namespace gpumem
