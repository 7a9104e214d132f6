// Detects a repeating pair: a block that is handed out, freed, handed out and freed again. If the arena
// serves and takes back nothing else meanwhile, it would place the next request of that size at the same address. The
// pool locks.
#pragma once

#include <cstdint>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

class thread_cache;

class pair_watch {
 public:
  /// The arena has served a request.
  void handed_out(address begin, std::uint64_t bytes) noexcept {
    if (outstanding_ || begin != begin_ || bytes != bytes_) pairs_ = 0;
    begin_ = begin;
    bytes_ = bytes;
    outstanding_ = true;
  }
  /// A block is freed under the lock; true if this is its second pair in a row.
  bool freed(address begin) noexcept {
    pairs_ = outstanding_ && begin == begin_ ? pairs_ + 1 : 0;
    outstanding_ = false;
    return pairs_ >= 2;
  }

  /// Where the pair's block is kept: a bin that is open for one block.
  struct place {
    thread_cache* cache = nullptr;
    owner_id owner = idle_owner;
    std::uint32_t units = 0;
  } kept;

 private:
  address begin_ = 0;
  std::uint64_t bytes_ = 0;
  bool outstanding_ = false;  // handed out, and nothing was freed since
  std::uint64_t pairs_ = 0;
};

}  // namespace gpumem
