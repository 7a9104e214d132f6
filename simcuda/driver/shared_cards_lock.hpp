// Memory of cards that other processes hold, too (shared_cards.hpp): looked up before anything is taken.
#pragma once

#include <algorithm>

#include "driver_state.hpp"

namespace gpumem::simcuda {

/// While it lives, no other process takes memory, and `on` knows what they hold. Where nothing is shared, nothing.
/// Under the world's lock.
class shared_cards_lock {
 public:
  explicit shared_cards_lock(gpu& device) : cards_{the_driver_state().shared.get()} {
    if (cards_ == nullptr) return;
    cards_->lock();
    const std::uint64_t foreign_bytes = cards_->held_by_others(device.card);
    device.sim->set_foreign_bytes(foreign_bytes -
                                  std::min(foreign_bytes, device.imported_bytes));  // what is imported is in both
  }
  ~shared_cards_lock() {
    if (cards_ == nullptr) return;
    publish_held();
    cards_->unlock();
  }
  shared_cards_lock(const shared_cards_lock&) = delete;
  shared_cards_lock& operator=(const shared_cards_lock&) = delete;

 private:
  shared_cards* cards_;
};

}  // namespace gpumem::simcuda
