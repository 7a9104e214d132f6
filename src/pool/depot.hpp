// Between the threads' caches and the heap: batches of blocks of one stream and one size, handed over as a whole.
//
// A thread that frees what another one allocates fills its bins, and the other one's run dry; both meet here once a
// batch and not once a block. Blocks in the depot are out of the heap, and their claims say `cache`. The pool locks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "stream_cache.hpp"

namespace gpumem {

class depot {
 public:
  static constexpr std::uint32_t batch = stream_cache::batch;

  struct blocks {
    std::array<claim_index, batch> held;
    std::uint32_t count = 0;
    std::uint32_t next = no_block;
  };
  static_assert(sizeof(blocks) == 128);

  /// False where the place is taken by another size, or holds as many batches as it may.
  bool put(owner_id o, std::uint32_t units, const claim_index* first, std::uint32_t count);
  /// The latest batch of that size; `count` is 0 where there is none.
  blocks take(owner_id o, std::uint32_t units) noexcept;
  /// Any batch of the owner's; `count` is 0 where there is none left.
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
        for (std::uint32_t b = p.first; b != no_block; b = batches_[b].next) each(o, p.units, batches_[b]);
      }
    }
  }

 private:
  static constexpr std::uint32_t most_batches = 64;  // of one size
  static constexpr std::uint32_t sizes = 256;
  struct place {
    std::uint32_t units = 0;
    std::uint32_t first = no_block;
    std::uint32_t batches = 0;
  };
  blocks take_from(place& p) noexcept;

  std::vector<std::vector<place>> by_owner_;
  std::vector<blocks> batches_;
  std::uint32_t spare_ = no_block;
  std::uint64_t bytes_ = 0;
  std::uint64_t blocks_ = 0;
  std::array<std::uint32_t, sizes> batches_by_size_{};  // of all sizes that share a place, and all owners
};

}  // namespace gpumem
