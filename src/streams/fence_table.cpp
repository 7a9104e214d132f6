#include "fence_table.hpp"

#include <algorithm>

#include "without_exceptions.hpp"

namespace gpumem {

fence_table::~fence_table() {
  for (const tracked_fence& f : fences_) {
    if (f.refcount != 0) device_.drop(f.device_fence);
  }
}

void fence_table::unref(fence_index fence) noexcept {
  if (--fences_[fence].refcount != 0) return;
  device_.drop(fences_[fence].device_fence);
  fences_[fence].device_fence = {};
  spare_.push_back(fence);
}

void fence_table::make_room() {
  if (!spare_.empty()) return;
  gpumem::make_room(fences_);
  spare_.reserve(fences_.capacity());  // so that `unref` need not allocate
  spare_.push_back(static_cast<fence_index>(fences_.size()));
  fences_.emplace_back();
}

fence_index fence_table::add(const tracked_fence& added) {
  make_room();
  const fence_index fence = spare_.back();
  spare_.pop_back();
  fences_[fence] = added;
  return fence;
}

fence_index fence_table::add_unrecorded(unrecorded_fence wanted, owner_id order) {
  make_room();
  wanted.fence = spare_.back();
  unrecorded_.push_back(wanted);
  return add({.device_fence = {},
              .refcount = 2,
              .status = tracked_fence::state::unrecorded,
              .foreign = wanted.foreign != 0,
              .order = order,
              .number = next_number_++});
}

fence_index fence_table::unrecorded_on_context() const noexcept {
  const auto found = std::ranges::find_if(
      unrecorded_, [](const unrecorded_fence& wanted) { return !wanted.by_stream && wanted.foreign == 0; });
  return found != unrecorded_.end() ? found->fence : no_fence;
}

void fence_table::recorded(const unrecorded_fence& unrecorded, std::optional<fence> made) noexcept {
  tracked_fence& t = fences_[unrecorded.fence];
  if (made) {
    ++recorded_;
    t.device_fence = *made;
    t.status = tracked_fence::state::pending;
  } else {
    t.status = tracked_fence::state::failed;
    t.record_failed = true;
  }
  unref(unrecorded.fence);
}

}  // namespace gpumem
