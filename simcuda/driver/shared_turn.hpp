// Memory of cards that other processes hold, too (shared_cards.hpp): looked up before anything is taken.
#pragma once

#include <algorithm>

#include "world.hpp"

namespace gpumem::simcuda {

/// While it lives, no other process takes memory, and `on` knows what they hold. Where nothing is shared, nothing.
/// Under the world's lock.
class shared_turn {
 public:
  explicit shared_turn(gpu& on) : cards_{the_world().shared.get()} {
    if (cards_ == nullptr) return;
    cards_->lock();
    const std::uint64_t others = cards_->held_by_others(on.card);
    on.sim->set_foreign_bytes(others - std::min(others, on.imported_bytes));  // what is imported is in both
  }
  ~shared_turn() {
    if (cards_ == nullptr) return;
    publish_held();
    cards_->unlock();
  }
  shared_turn(const shared_turn&) = delete;
  shared_turn& operator=(const shared_turn&) = delete;

 private:
  shared_cards* cards_;
};

}  // namespace gpumem::simcuda
