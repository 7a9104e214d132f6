// Locks cards that other processes share (shared_cards.hpp) and reads their usage before an allocation.
#pragma once

#include <algorithm>

#include "driver_state.hpp"

namespace gpumem::simcuda {

/// While it lives, no other process allocates on the cards, and `device` has the bytes that other processes hold. Does
/// nothing if the cards are not shared. Requires the driver state's lock.
class shared_cards_lock {
 public:
  explicit shared_cards_lock(gpu& device) : cards_{the_driver_state().shared.get()} {
    if (cards_ == nullptr) return;
    cards_->lock();
    const std::uint64_t foreign_bytes = cards_->held_by_others(device.card);
    device.sim->set_foreign_bytes(foreign_bytes -
                                  std::min(foreign_bytes, device.imported_bytes));  // imports count in both figures
  }
  ~shared_cards_lock() {
    if (cards_ == nullptr) return;
    publish_held();
    cards_->unlock();
  }
  shared_cards_lock& operator=(shared_cards_lock&&) = delete;

 private:
  shared_cards* cards_;
};

}  // namespace gpumem::simcuda
