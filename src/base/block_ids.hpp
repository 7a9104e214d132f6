// The numbers by which a heap, its caches and the order of streams name a block and whose it is.
#pragma once

#include <cstdint>

namespace gpumem {

/// A block's record in its heap, for as long as the block lives.
using block_index = std::uint32_t;
inline constexpr block_index no_block = 0xffff'ffff;

/// Whose a block is: 0 is everybody's (idle), any other number the pool's name for a stream or a graph.
using owner_id = std::uint32_t;
inline constexpr owner_id idle_owner = 0;

}  // namespace gpumem
