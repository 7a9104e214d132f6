// Frees of one thread behind all work of the device that the arena does not have yet: batches, each with the fence
// behind its last free.
//
// After such a free (a preloaded cudaFree) others may use the block only when everything submitted to the device before
// it is done. No request can use the block at once, so the free need not take the lock: the thread hands whole batches
// over to the arena when it allocates next. The access rules are those of its thread's cache (thread_cache.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "gpumem/device.hpp"
#include "pointer_map.hpp"

namespace gpumem {

class deferred_frees {
 public:
  /// One fence covers at most this many frees, or ends with the free that brings them to this many bytes.
  static constexpr std::uint32_t frees_a_fence = 16;
  static constexpr std::uint64_t bytes_a_fence = std::uint64_t{1} << 20;
  static constexpr std::uint32_t most_batches = 16;

  struct batch {
    std::array<slot_index, frees_a_fence> held{};
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    fence batch_fence;  ///< empty: not recorded

    [[nodiscard]] std::span<const slot_index> slots() const noexcept { return {held.data(), count}; }
  };

  /// True if there is no room for another free: the batches must go to the arena first.
  [[nodiscard]] bool full() const noexcept { return complete_ == most_batches; }
  /// Adds a free. True if it completes the batch, whose fence is then due. Requires room.
  [[nodiscard]] bool push(slot_index slot, std::uint64_t bytes) noexcept {
    batch& b = batches_[complete_];
    b.held[b.count++] = slot;
    b.bytes += bytes;
    if (b.count < frees_a_fence && b.bytes < bytes_a_fence) return false;
    ++complete_;
    return true;
  }
  /// Sets the fence of the batch that was completed last; only the thread itself calls this. False if the batch was
  /// taken meanwhile.
  [[nodiscard]] bool fenced_by(fence batch_fence) noexcept {
    if (complete_ == 0) return false;
    batches_[complete_ - 1].batch_fence = batch_fence;
    return true;
  }

  /// Calls `each(batch)` for every complete batch, and for the incomplete one if memory is short, and removes these.
  template <typename Each>
  void take(bool memory_is_short, Each each) {
    for (std::uint32_t i = 0; i < complete_; ++i) each(std::exchange(batches_[i], batch{}));
    if (complete_ != 0 && complete_ != most_batches) std::swap(batches_[0], batches_[complete_]);
    complete_ = 0;
    if (memory_is_short && batches_[0].count != 0) each(std::exchange(batches_[0], batch{}));
  }
  [[nodiscard]] bool any_complete() const noexcept { return complete_ != 0; }
  [[nodiscard]] std::span<const batch> batches() const noexcept { return batches_; }

 private:
  std::array<batch, most_batches> batches_;  // complete ones first, then the incomplete one; the rest are empty
  std::uint32_t complete_ = 0;
};

}  // namespace gpumem
