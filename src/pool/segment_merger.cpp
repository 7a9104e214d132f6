#include "segment_merger.hpp"

#include <algorithm>

namespace gpumem {

void segment_merger::note_held() noexcept {
  most_before_bytes_ = std::max(most_before_bytes_, state_.pool_budget.reserved());
}

// Segments of several classes cannot become one. Where captures may hide, the device is never found idle.
void segment_merger::grew_beside_idle(std::uint64_t bytes) noexcept {
  if (state_.pool_policy.segment_classes() != 1 || state_.streams.keys().captures_may_hide()) return;
  asks_left_ = most_asks;
  const std::uint64_t held_bytes = state_.pool_budget.reserved();
  added_bytes_ += std::min(bytes, held_bytes - std::min(held_bytes, most_before_bytes_));
}

void segment_merger::try_to_merge(arena_lock& lock, const pending_request& served) noexcept {
  if (served.capturing || state_.gate.taken()) return;
  try {
    merge_if_idle(lock, served);
  } catch (...) {  // the host is out of memory, or the policy threw; segments may have gone back already
    forget();
    state_.mutex.begin_generation();
  }
}

void segment_merger::merge_if_idle(arena_lock& lock, const pending_request& served) {
  fences_.poll(lock);
  if (asks_left_ == 0 || has_pending_fences()) return;  // another thread may have merged: `poll` releases the lock
  --asks_left_;
  if (!fences_.finds_idle(lock, served.stream, served.stream_key)) {
    if (asks_left_ == 0) forget();
    return;
  }
  const trimmer::idle_segments idle = trimmer_.idle();
  if (!state_.pool_policy.merges_idle(state_.view(), idle.bytes, idle.count)) return forget();
  const std::uint64_t added_bytes = added_bytes_;
  added_bytes_ -= std::min(added_bytes_, idle.bytes);
  if (added_bytes_ == 0) forget();
  if (idle.count >= 2) replace_by_one(lock, idle.bytes, added_bytes);
}

// Holds the growth ticket only for the new segment, because work that another thread submits meanwhile makes the
// driver's free wait, and other requests may have to grow by then.
void segment_merger::replace_by_one(arena_lock& lock, std::uint64_t idle_bytes, std::uint64_t added_bytes) {
  const std::uint64_t went = trimmer_.return_before_growth(lock, UINT64_MAX);
  // Interrupted: what went is taken again, or the idle segments would only be fewer.
  const std::uint64_t less_bytes = went < idle_bytes ? 0 : added_bytes;
  if (went > less_bytes && !state_.gate.taken()) {
    const growth_ticket ticket{state_.gate};
    growth_.take(lock, went - less_bytes);
  }
  state_.mutex.begin_generation();  // for requests that wait because of the ticket
}

// A pending fence behind frees shows that the device has work. To ask further would record another fence, which would
// be pending, too.
bool segment_merger::has_pending_fences() const {
  const std::vector<owner_id>& owners = state_.blocks.free_blocks().owners();
  return !state_.uses.waiting().empty() || std::ranges::any_of(owners, [&](owner_id owner) GPUMEM_UNDER_LOCK {
    return owner != idle_owner && !state_.streams[owner].fences.empty();
  });
}

}  // namespace gpumem
