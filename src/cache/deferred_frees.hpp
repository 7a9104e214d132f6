// What one thread has freed behind all work of the device and not brought to the arena yet: batches, each with the
// fence behind its last free.
//
// Such a free (a preloaded cudaFree) makes a block free for others only when everything that the device was given until
// then is done. Nobody can have it at once, so it need not take the lock: the thread brings whole batches to the arena
// when it allocates next. Who may touch it: whoever may touch its thread's cache (thread_cache.hpp).
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
  /// What one fence covers at most: so many frees, or the free that brings them to so many bytes.
  static constexpr std::uint32_t frees_a_fence = 16;
  static constexpr std::uint64_t bytes_a_fence = std::uint64_t{1} << 20;
  static constexpr std::uint32_t most_batches = 16;

  struct batch {
    std::array<slot_index, frees_a_fence> held{};
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    fence batch_fence;  ///< none: it was not recorded

    [[nodiscard]] std::span<const slot_index> slots() const noexcept { return {held.data(), count}; }
  };

  /// No room for another free: the batches are to be brought to the arena first.
  [[nodiscard]] bool full() const noexcept { return complete_ == most_batches; }
  /// True where the batch is complete with it, so that its fence is due. Requires room.
  [[nodiscard]] bool push(slot_index slot, std::uint64_t bytes) noexcept {
    batch& b = batches_[complete_];
    b.held[b.count++] = slot;
    b.bytes += bytes;
    if (b.count < frees_a_fence && b.bytes < bytes_a_fence) return false;
    ++complete_;
    return true;
  }
  /// That of the batch completed last, by the thread itself; false where somebody has taken the batch meanwhile.
  [[nodiscard]] bool fenced_by(fence batch_fence) noexcept {
    if (complete_ == 0) return false;
    batches_[complete_ - 1].batch_fence = batch_fence;
    return true;
  }

  /// Calls `each(batch)` for every complete batch, and for the one begun where memory is short, and forgets these.
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
  std::array<batch, most_batches> batches_;  // the complete ones first, then the one begun; the others are empty
  std::uint32_t complete_ = 0;
};

}  // namespace gpumem
