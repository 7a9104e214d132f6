// Replaces idle segments by one segment, which serves requests of any size.
//
// A pool that grows because its idle segments are each too small gives them back first, but only if the device has no
// work, because the driver's free waits for it. If the device has work, the pool grows beside them. At a later request
// that no cache serves and that finds the device idle, it gives its idle segments back and takes one of their total
// size, less the bytes by which the pool grew beside them. Growth up to what the pool held at an earlier growth does
// not count, so a pool that needs the bytes again keeps them. The policy says whether merging pays
// (`policy::merges_idle`). The pool merges until as many bytes were idle at such requests as it grew by,
// the policy declines, or it has asked the device `most_asks` times since it last grew so.
#pragma once

#include "growth.hpp"
#include "trimmer.hpp"

namespace gpumem {

class segment_merger {
 public:
  segment_merger(arena_state& state, fence_calls& fences, growth& grows, trimmer& trims)
      : state_{state}, fences_{fences}, growth_{grows}, trimmer_{trims} {}

  /// Called before the ladder grows the pool: remembers how many bytes it holds.
  void note_held() noexcept GPUMEM_UNDER_LOCK;
  /// The pool grew by `bytes` beside idle segments that would have gone back first if the device were known to be idle.
  void grew_beside_idle(std::uint64_t bytes) noexcept GPUMEM_UNDER_LOCK;
  /// Merges if that is due and the device has no work. Called with a request that has its block already: nothing that
  /// fails here concerns it. May release the lock. Waits for no work, unless another thread submits some meanwhile.
  void merge(arena_lock& lock, const pending_request& served) noexcept GPUMEM_UNDER_LOCK {
    if (asks_left_ != 0) try_to_merge(lock, served);
  }

  /// Bounds the driver calls of a program whose device is never idle.
  static constexpr unsigned most_asks = 256;

 private:
  void try_to_merge(arena_lock& lock, const pending_request& served) noexcept GPUMEM_UNDER_LOCK;
  void merge_if_idle(arena_lock& lock, const pending_request& served) GPUMEM_UNDER_LOCK;
  void replace_by_one(arena_lock& lock, std::uint64_t idle_bytes, std::uint64_t added_bytes) GPUMEM_UNDER_LOCK;
  void forget() noexcept GPUMEM_UNDER_LOCK { asks_left_ = 0, added_bytes_ = 0; }
  [[nodiscard]] bool has_pending_fences() const GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  growth& growth_;
  trimmer& trimmer_;
  unsigned asks_left_ = 0;               ///< 0: nothing is due
  std::uint64_t most_before_bytes_ = 0;  ///< the most that the pool held before a growth
  std::uint64_t added_bytes_ = 0;        ///< by growth beside idle segments, beyond that
};

}  // namespace gpumem
