// References into the stream order that last while the lock is released: to a slot, or to fences. RAII types.
#pragma once

#include <vector>

#include "stream_order.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

/// Holds a reference to a slot. After `keep` the destructor does not drop it: the placed block has it now.
class slot_reference {
 public:
  slot_reference(stream_order& streams, owner_id owner) noexcept : streams_{&streams}, owner_{owner} {
    ++streams[owner].references;
  }
  ~slot_reference() {
    if (streams_ != nullptr) --(*streams_)[owner_].references;
  }
  slot_reference& operator=(slot_reference&&) = delete;
  void keep() noexcept { streams_ = nullptr; }

 private:
  stream_order* streams_;
  owner_id owner_;
};

/// Fences to wait for. Drops its references at the end.
class held_fences {
 public:
  explicit held_fences(stream_order& streams) noexcept : streams_{streams} {}
  ~held_fences() {
    for (const fence_index f : held_) streams_.fences().unref(f);
  }
  held_fences& operator=(held_fences&&) = delete;
  /// Adds a fence that covers everything freed on `owner`; false if there is nothing to cover, or no fence can be
  /// recorded.
  bool add_cover_of(owner_id owner) {
    make_room(held_);
    const result<fence_index> f = streams_.cover(owner);
    if (!f || *f == no_fence) return false;
    held_.push_back(*f);
    return true;
  }
  /// Adds a fence that has another holder as well.
  void add(fence_index fence) {
    make_room(held_);
    streams_.fences().ref(fence);
    held_.push_back(fence);
  }
  /// Adds a fence behind all work of `owner` so far; false if none can be recorded. `is_known_to_live` as for
  /// stream_order::reserve_fence.
  bool add_new(owner_id owner, bool is_known_to_live) {
    make_room(held_);
    const result<fence_index> f = streams_.reserve_fence(owner, is_known_to_live);
    if (f) held_.push_back(*f);
    return f.ok();
  }
  [[nodiscard]] const std::vector<fence_index>& all() const noexcept { return held_; }

 private:
  stream_order& streams_;
  std::vector<fence_index> held_;
};

}  // namespace gpumem
