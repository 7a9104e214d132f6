// Replaces idle segments by one segment, which serves requests of any size.
//
// A pool that grows because its idle segments are each too small gives them back first, but only if the device has no
// work, because the driver's free waits for it. If the device has work, the pool grows beside them. At the first later
// request that finds the device idle, it gives its idle segments back and takes one of their total size, less what
// those growths added: with one segment they would not have been needed. Growth up to what the pool held at an earlier
// growth adds nothing, so a pool that needs the bytes again keeps them. The policy says whether merging pays
// (`policy::merges_idle`). The pool merges again until as many bytes were idle at such requests as were added.
#pragma once

#include "growth.hpp"
#include "trimmer.hpp"

namespace gpumem {

class segment_merger {
 public:
  segment_merger(arena_state& state, fence_calls& fences, growth& grows, trimmer& trims)
      : state_{state}, fences_{fences}, growth_{grows}, trimmer_{trims} {}

  /// Called before each growth, and after one beside idle segments that would have gone back first if the device had no
  /// work.
  void before_growth() noexcept GPUMEM_UNDER_LOCK;
  void grew_beside_idle() noexcept GPUMEM_UNDER_LOCK;
  /// Merges if that is due and the device has no work. Called with a request that has its block already: nothing that
  /// fails here concerns it. May release the lock. While the device has work, queries it at most once.
  void merge(arena_lock& lock, const pending_request& served) noexcept GPUMEM_UNDER_LOCK {
    if (due_) try_to_merge(lock, served);
  }

 private:
  void try_to_merge(arena_lock& lock, const pending_request& served) noexcept GPUMEM_UNDER_LOCK;
  void merge_if_idle(arena_lock& lock, const pending_request& served) GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool waits_for_work() const GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  growth& growth_;
  trimmer& trimmer_;
  bool due_ = false;
  std::uint64_t most_before_bytes_ = 0;  ///< the most that the pool held before a growth
  std::uint64_t added_bytes_ = 0;        ///< by growth beside idle segments, beyond that
};

}  // namespace gpumem
