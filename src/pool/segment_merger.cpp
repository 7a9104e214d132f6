#include "segment_merger.hpp"

#include <algorithm>

namespace gpumem {

void segment_merger::before_growth() noexcept {
  most_before_bytes_ = std::max(most_before_bytes_, state_.pool_budget.reserved());
}

// Segments of several classes cannot become one. Where captures may hide, the device is never found idle.
void segment_merger::grew_beside_idle() noexcept {
  if (state_.pool_policy.segment_classes() != 1 || state_.streams.keys().captures_may_hide()) return;
  due_ = true;
  const std::uint64_t held_bytes = state_.pool_budget.reserved();
  added_bytes_ += held_bytes - std::min(held_bytes, most_before_bytes_);
}

void segment_merger::try_to_merge(arena_lock& lock, const pending_request& served) noexcept {
  if (served.capturing || state_.gate.taken()) return;
  try {
    merge_if_idle(lock, served);
  } catch (...) {  // the host is out of memory, or the policy threw: the pool stays as it is
    due_ = false;
  }
}

void segment_merger::merge_if_idle(arena_lock& lock, const pending_request& served) {
  fences_.poll(lock);
  if (waits_for_work() || !fences_.finds_idle(lock, served.stream, served.stream_key, 1)) return;
  if (state_.gate.taken()) return;
  const trimmer::idle_segments idle = trimmer_.idle();
  if (!state_.pool_policy.merges_idle(state_.view(), idle.bytes)) {
    due_ = false;
    return;
  }
  const std::uint64_t added_bytes = added_bytes_;
  added_bytes_ -= std::min(added_bytes_, idle.bytes);
  due_ = added_bytes_ != 0;
  if (idle.count < 2) return;
  {
    const growth_ticket ticket{state_.gate};  // other threads wait for the new segment instead of growing beside it
    const std::uint64_t went = trimmer_.return_before_growth(lock, UINT64_MAX);
    if (went > added_bytes) growth_.take(lock, went - added_bytes);
  }
  state_.mutex.begin_generation();  // for requests that wait because of the ticket
}

// While a fence behind frees is pending, the device has work, and another fence for what was freed since would only
// become pending, too.
bool segment_merger::waits_for_work() const {
  const std::vector<owner_id>& owners = state_.blocks.free_blocks().owners();
  return !state_.uses.waiting().empty() || std::ranges::any_of(owners, [&](owner_id owner) GPUMEM_UNDER_LOCK {
    return owner != idle_owner && !state_.streams[owner].fences.empty();
  });
}

}  // namespace gpumem
