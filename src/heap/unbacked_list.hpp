// The unbacked and vacating blocks of paged segments: a list without an order, linked through the records.
#pragma once

#include "block.hpp"

namespace gpumem {

class unbacked_list {
 public:
  explicit unbacked_list(block_table& blocks) noexcept : blocks_{blocks} {}

  /// The first block; `in_index.newer` leads to the others.
  [[nodiscard]] block_index first() const noexcept { return first_; }
  void insert(block_index index) noexcept {
    blocks_[index].in_index = {.newer = first_};
    if (first_ != no_block) blocks_[first_].in_index.older = index;
    first_ = index;
  }
  void erase(block_index index) noexcept {
    const index_links& links = blocks_[index].in_index;
    (links.older != no_block ? blocks_[links.older].in_index.newer : first_) = links.newer;
    if (links.newer != no_block) blocks_[links.newer].in_index.older = links.older;
  }

 private:
  block_table& blocks_;
  block_index first_ = no_block;
};

}  // namespace gpumem
