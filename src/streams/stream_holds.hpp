// What somebody keeps of the stream order while the lock is given up: a slot, or fences. Each is let go at its end.
#pragma once

#include <vector>

#include "stream_order.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

/// Keeps a slot for as long as it lives, whatever happens; `keep` leaves the reference to the block that was placed.
class slot_reference {
 public:
  slot_reference(stream_order& in, owner_id of) noexcept : in_{&in}, of_{of} { ++in[of].references; }
  ~slot_reference() {
    if (in_ != nullptr) --(*in_)[of_].references;
  }
  slot_reference(const slot_reference&) = delete;
  slot_reference& operator=(const slot_reference&) = delete;
  void keep() noexcept { in_ = nullptr; }

 private:
  stream_order* in_;
  owner_id of_;
};

/// Fences that somebody waits for. Lets go of each at its end.
class held_fences {
 public:
  explicit held_fences(stream_order& in) noexcept : in_{in} {}
  ~held_fences() {
    for (const fence_index f : held_) in_.let_go(f);
  }
  held_fences(const held_fences&) = delete;
  held_fences& operator=(const held_fences&) = delete;
  /// What everything freed on that slot is done behind; false where that is nothing, or cannot be known now.
  bool add_cover_of(owner_id o) {
    make_room(held_);
    const result<fence_index> f = in_.cover(o);
    if (!f || *f == no_fence) return false;
    held_.push_back(*f);
    return true;
  }
  /// One that somebody else holds as well.
  void add(fence_index f) {
    make_room(held_);
    in_.hold(f);
    held_.push_back(f);
  }
  [[nodiscard]] const std::vector<fence_index>& all() const noexcept { return held_; }

 private:
  stream_order& in_;
  std::vector<fence_index> held_;
};

}  // namespace gpumem
