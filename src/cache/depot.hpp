// Between the threads' caches and the heap: batches of blocks of one stream and one size, handed over as a whole.
//
// A thread that frees what another one allocates fills its bins, and the other one's run dry; both meet here once a
// batch and not once a block. Blocks in the depot are out of the heap, and their slots say `cache`. The pool locks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "stream_cache.hpp"

namespace gpumem {

class depot {
 public:
  static constexpr std::uint32_t batch = stream_cache::batch;

  /// A batch, until the next `put`: the slots of its blocks, in the order in which they were freed.
  using blocks = std::span<const slot_index>;

  /// False where the place is taken by another size, or holds as many batches as it may.
  bool put(owner_id o, std::uint32_t units, const slot_index* first, std::uint32_t count);
  /// Whether `take` finds one.
  [[nodiscard]] bool holds(owner_id o, std::uint32_t units) const noexcept;
  /// The oldest batch of that size; empty where there is none.
  blocks take(owner_id o, std::uint32_t units) noexcept;
  /// Any batch of the owner's; empty where there is none left.
  blocks take_any(owner_id o) noexcept;

  [[nodiscard]] owner_id owners() const noexcept { return static_cast<owner_id>(by_owner_.size()); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t held_blocks() const noexcept { return blocks_; }
  /// False: it holds none of that size. True may be wrong.
  [[nodiscard]] bool may_hold(std::uint32_t units) const noexcept { return batches_by_size_[units % sizes] != 0; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

  /// Calls `each(owner, units, blocks)` for every batch.
  template <typename Each>
  void for_each(Each each) const {
    for (owner_id o = 0; o < by_owner_.size(); ++o) {
      for (const place& p : by_owner_[o]) {
        for (std::uint32_t b = p.first; b != no_block; b = links_[b].next) each(o, p.units, batch_at(b));
      }
    }
  }

 private:
  static constexpr std::uint32_t most_batches = 64;  // of one size
  static constexpr std::uint32_t sizes = 256;
  struct place {
    std::uint32_t units = 0;
    std::uint32_t first = no_block;  // the oldest
    std::uint32_t last = no_block;
    std::uint32_t batches = 0;
  };
  struct alignas(64) batch_of_slots {
    std::array<slot_index, batch> held;
  };
  struct link {
    std::uint32_t count = 0;
    std::uint32_t next = no_block;
  };
  [[nodiscard]] blocks batch_at(std::uint32_t b) const noexcept { return {held_[b].held.data(), links_[b].count}; }
  blocks take_from(place& p) noexcept;

  std::vector<std::vector<place>> by_owner_;
  // Apart, so that who takes several waits for one line of memory from another processor, and not for one each time.
  std::vector<batch_of_slots> held_;
  std::vector<link> links_;
  std::uint32_t spare_ = no_block;
  std::uint64_t bytes_ = 0;
  std::uint64_t blocks_ = 0;
  std::array<std::uint32_t, sizes> batches_by_size_{};  // of all sizes that share a place, and all owners
};

}  // namespace gpumem
