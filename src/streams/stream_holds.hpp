// What somebody keeps of the stream order while the lock is given up: a slot, or fences. Each is let go at its end.
#pragma once

#include <vector>

#include "stream_order.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

/// Keeps a slot for as long as it lives, whatever happens; `keep` leaves the reference to the block that was placed.
class slot_reference {
 public:
  slot_reference(stream_order& streams, owner_id owner) noexcept : streams_{&streams}, owner_{owner} {
    ++streams[owner].references;
  }
  ~slot_reference() {
    if (streams_ != nullptr) --(*streams_)[owner_].references;
  }
  slot_reference(const slot_reference&) = delete;
  slot_reference& operator=(const slot_reference&) = delete;
  void keep() noexcept { streams_ = nullptr; }

 private:
  stream_order* streams_;
  owner_id owner_;
};

/// Fences that somebody waits for. Lets go of each at its end.
class held_fences {
 public:
  explicit held_fences(stream_order& streams) noexcept : streams_{streams} {}
  ~held_fences() {
    for (const fence_index f : held_) streams_.unref(f);
  }
  held_fences(const held_fences&) = delete;
  held_fences& operator=(const held_fences&) = delete;
  /// What everything freed on that slot is done behind; false where that is nothing, or cannot be known now.
  bool add_cover_of(owner_id owner) {
    make_room(held_);
    const result<fence_index> f = streams_.cover(owner);
    if (!f || *f == no_fence) return false;
    held_.push_back(*f);
    return true;
  }
  /// One that somebody else holds as well.
  void add(fence_index fence) {
    make_room(held_);
    streams_.ref(fence);
    held_.push_back(fence);
  }
  [[nodiscard]] const std::vector<fence_index>& all() const noexcept { return held_; }

 private:
  stream_order& streams_;
  std::vector<fence_index> held_;
};

}  // namespace gpumem
