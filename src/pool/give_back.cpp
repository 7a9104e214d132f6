// Giving memory back to the device: on request (`trim`, a lower limit) or, where the policy says so, under pressure.
//
// Only wholly idle segments go, and only after every fence before them is done: the driver's free may wait for the
// device, its unmap does not. The lock is given up for each driver call.
#include <fmt/format.h>

#include <algorithm>

#include "log.hpp"
#include "pool.hpp"

namespace gpumem {

// Returns the largest idle segments first until `bytes` are returned; the bytes that went.
std::uint64_t pool::return_idle(guard& lock, std::uint64_t bytes) {
  if (paged()) return return_pages(lock, bytes);
  std::uint64_t returned = 0;
  while (returned < bytes && streams_.captures() == 0) {
    segment_index best = 0;
    std::uint64_t most = 0;
    for (segment_index s = 0; s < heap_.segments().size(); ++s) {
      if (heap_.segment_idle(s) && heap_.segments()[s].bytes > most) {
        most = heap_.segments()[s].bytes;
        best = s;
      }
    }
    if (most == 0) break;
    const backed_segment going = backed_[best];
    heap_.remove_segment(best);
    backed_[best] = {};
    lost_bytes_ += going.bytes;  // nobody's until the driver has taken it
    status taken;
    {
      const blocking_call waits{calls_.waits, lock, mutex_};
      taken = return_segment(device_, going);
      if (!taken) {
        log_if_possible([&] {
          return fmt::format("pool {}: {} leaked, the driver did not take a segment back: {}", config_.name,
                             format_bytes(going.bytes), taken.message());
        });
      }
    }
    if (!taken) break;
    lost_bytes_ -= going.bytes;
    budget_.give_back(going.bytes);
    returned += going.bytes;
    ++counts_.returned_segments;
  }
  return returned;
}

// Of a paged segment: pages that are idle, or wait for work to be so, may go; the rest stands beside live blocks.
void pool::explain_pages(const heap_segment& segment, bool allowed, trim_result* out) const {
  std::uint64_t idle_bytes = 0;
  for (block_index i = segment.first; i != no_block; i = heap_.at(i).above) {
    const block& b = heap_.at(i);
    const bool waits = b.state == block_state::fenced || (b.state == block_state::free && b.owner != idle_owner);
    if (waits) (allowed ? out->pending_bytes : out->kept_bytes) += b.bytes;
    if (b.state == block_state::free && b.owner == idle_owner) idle_bytes += b.bytes;
  }
  std::uint64_t whole = 0;
  for (const idle_stretch& stretch : pages_.idle(heap_, 0, 0)) {
    if (stretch.begin >= segment.begin && stretch.begin < segment.begin + segment.bytes) whole += stretch.bytes;
  }
  out->in_use_bytes += idle_bytes - whole;
  if (!allowed)
    out->kept_bytes += whole;
  else if (streams_.captures() > 0)
    out->pending_bytes += whole;
}

// Says of every free byte why it is still here.
void pool::explain_rest(bool allowed, trim_result* out) const {
  for (segment_index s = 0; s < heap_.segments().size(); ++s) {
    const heap_segment& segment = heap_.segments()[s];
    if (segment.bytes == 0) continue;
    if (backed_[s].kind == segment_kind::paged) {
      explain_pages(segment, allowed, out);
      continue;
    }
    std::uint64_t free_bytes = 0;
    bool in_use = false;
    for (block_index i = segment.first; i != no_block; i = heap_.at(i).above) {
      const block_state state = heap_.at(i).state;
      if (state == block_state::free || state == block_state::fenced) {
        free_bytes += heap_.at(i).bytes;
      } else {
        in_use = true;
      }
    }
    if (in_use) {
      out->in_use_bytes += free_bytes;
    } else if (!allowed) {
      out->kept_bytes += free_bytes;
    } else if (!heap_.segment_idle(s) || streams_.captures() > 0) {
      out->pending_bytes += free_bytes;
    }
  }
}

trim_result pool::trim(std::uint64_t bytes) {
  guard lock{mutex_};
  ++counts_.locks;
  trim_result out;
  poll(lock);
  cache_.reclaim_all();
  const bool allowed = policy_.gives_back(give_back::trim, view());
  if (allowed) {
    out.returned_bytes = return_idle(lock, bytes);
    if (out.returned_bytes < bytes && wait_for_fences(lock)) {
      poll(lock);
      out.returned_bytes += return_idle(lock, bytes - out.returned_bytes);
    }
  }
  explain_rest(allowed, &out);
  return out;
}

limit_result pool::set_limit(std::uint64_t limit_bytes) {
  budget_.set_limit(limit_bytes);
  limit_result out;
  const std::uint64_t held = budget_.reserved();
  if (held > limit_bytes) out.trimmed = trim(held - limit_bytes);
  const guard lock{mutex_};
  out.limit_bytes = limit_bytes;
  out.reserved_bytes = budget_.reserved();
  out.over_bytes = out.reserved_bytes > limit_bytes ? out.reserved_bytes - limit_bytes : 0;
  const auto stopped = cache_.stop();
  out.live_bytes = stats_of_stopped().live_bytes;
  return out;
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
