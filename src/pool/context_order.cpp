#include "context_order.hpp"

#include "without_exceptions.hpp"

namespace gpumem {

void context_order::begin(stream_ref all, std::uint64_t key) {
  owner_ = state_.streams.slot_of(all, key);
  state_.streams[owner_].represents = stream_slot::kind::everything;
  ++state_.streams[owner_].references;  // never dropped
}

std::optional<fence> context_order::record() noexcept {
  if (!records_.enter()) return std::nullopt;
  const result<fence> recorded = without_exceptions([this] { return state_.own_device.record_context(); });
  records_.leave();
  return recorded ? std::optional{*recorded} : std::nullopt;
}

owner_id context_order::begin_batch(fence batch_fence) noexcept {
  if (!batch_fence) return owner_;
  try {
    return state_.streams.begin_batch(state_.streams[owner_].stream, batch_fence);
  } catch (...) {  // a later request for memory records another fence
    state_.own_device.drop(batch_fence);
    return owner_;
  }
}

void context_order::end_batch(owner_id owner) noexcept {
  if (owner != owner_) state_.streams.end_batch(owner);
}

bool context_order::cover(arena_lock& lock) {
  const result<fence_index> f = state_.streams.cover(owner_);
  if (!f) return false;
  if (*f != no_fence) state_.streams.fences().unref(*f);
  fences_.record(lock);
  return true;
}

void context_order::freed(arena_lock& lock, std::uint64_t bytes) {
  unfenced_bytes_ += bytes;
  if (++unfenced_frees_ < deferred_frees::frees_a_fence && unfenced_bytes_ < deferred_frees::bytes_a_fence) return;
  if (!cover(lock)) return;
  unfenced_frees_ = 0;
  unfenced_bytes_ = 0;
}

void context_order::wait_for_records(arena_lock& lock) const {
  state_.calls.context_records.wait_for_none(lock);
  const unlocked_section waits{lock};
  records_.wait_for_none();
}

}  // namespace gpumem
