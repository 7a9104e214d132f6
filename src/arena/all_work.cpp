#include "all_work.hpp"

#include "without_exceptions.hpp"

namespace gpumem {

void all_work::begin(stream_ref all, std::uint64_t key) {
  owner_ = in_.streams.slot_of(all, key);
  in_.streams[owner_].everything = true;
  ++in_.streams[owner_].references;  // for good
}

std::optional<fence> all_work::record() noexcept {
  if (!records_.enter()) return std::nullopt;
  const result<fence> behind = without_exceptions([this] { return in_.on.record_context(); });
  records_.leave();
  return behind ? std::optional{*behind} : std::nullopt;
}

owner_id all_work::begin_batch(fence behind) noexcept {
  if (!behind) return owner_;
  try {
    return in_.streams.begin_batch(in_.streams[owner_].stream, behind);
  } catch (...) {  // another one is recorded when memory is wanted
    in_.on.drop(behind);
    return owner_;
  }
}

void all_work::end_batch(owner_id o) noexcept {
  if (o != owner_) in_.streams.end_batch(o);
}

bool all_work::cover(arena_lock& lock) {
  const result<fence_index> f = in_.streams.cover(owner_);
  if (!f) return false;
  if (*f != no_fence) in_.streams.let_go(*f);
  fences_.record(lock);
  return true;
}

void all_work::wait_for_records(arena_lock& lock) const {
  in_.context_records.wait_for_none(lock);
  const unlocked_section waits{lock};
  records_.wait_for_none();
}

}  // namespace gpumem
