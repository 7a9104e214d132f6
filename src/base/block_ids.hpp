// Identifiers that the heap, the caches and the stream order share: blocks and their owners.
#pragma once

#include <cstdint>

namespace gpumem {

/// The index of a block's record in its heap, valid while the block exists.
using block_index = std::uint32_t;
inline constexpr block_index no_block = 0xffff'ffff;

/// The owner of a block: 0 for none (idle), else the pool's number of a stream or a graph.
using owner_id = std::uint32_t;
inline constexpr owner_id idle_owner = 0;
/// The owner that was added first, for the pool's first stream.
inline constexpr owner_id first_owner = 1;

}  // namespace gpumem
