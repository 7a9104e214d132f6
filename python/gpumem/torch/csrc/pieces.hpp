// A memory map in pieces of one pool each, without address ranges that have no memory. This file does not include
// torch.
#pragma once

#include <algorithm>

#include "memory_source.hpp"

/// Adjacent blocks of one segment that belong to one pool.
struct segment_piece {
  const gpumem::segment_view* segment = nullptr;
  const gpumem::block_view* begin = nullptr;
  const gpumem::block_view* end = nullptr;
  pool_id pool = no_pool;
  std::uint64_t number = 0;  ///< in the order in which the pool allocated its segments; 0: use the segment table
};

/// Calls `call` for each piece.
template <typename Call>
void each_piece(const memory_map& map, const Call& call) {
  const auto pool_of = [&](const gpumem::block_view& block) {
    const auto known = map.pool_of_region.find(block.region);
    return known != map.pool_of_region.end() ? known->second : no_pool;
  };
  for (const gpumem::segment_view& s : map.shared) {
    const gpumem::block_view* const end = s.blocks.data() + s.blocks.size();
    for (const gpumem::block_view* b = s.blocks.data(); b != end;) {
      if (b->is == gpumem::block_view::state::unbacked) {
        ++b;
        continue;
      }
      const gpumem::block_view* last = b + 1;
      while (last != end && last->is != gpumem::block_view::state::unbacked && last->region == b->region) ++last;
      call(segment_piece{&s, b, last, pool_of(*b)});
      b = last;
    }
  }
  for (const memory_map::own_segment& each : map.own) {
    const auto& blocks = each.view.blocks;
    call(segment_piece{&each.view, blocks.data(), blocks.data() + blocks.size(), each.pool, each.number});
  }
}

inline bool is_active(const gpumem::block_view& block) {
  return block.is == gpumem::block_view::state::live || block.is == gpumem::block_view::state::fenced;
}

/// Returns how many bytes to trim once a pool has ended, so that its idle segments leave the cache: its segments
/// without other blocks, and idle pages. trim() takes the largest segments first, so this returns 0 if a larger idle
/// segment would go in their place.
inline std::uint64_t bytes_to_trim(const memory_map& map, const pool_id& pool) {
  const auto is_of_pool = [&](const gpumem::block_view& block) {
    const auto known = map.pool_of_region.find(block.region);
    return known != map.pool_of_region.end() && known->second == pool;
  };
  std::uint64_t bytes = 0, largest_other = 0;
  for (const gpumem::segment_view& s : map.shared) {
    std::uint64_t idle = 0;
    bool in_use = false;
    for (const gpumem::block_view& b : s.blocks) {
      const bool of_pool = is_of_pool(b);
      in_use = in_use || is_active(b) || (b.region != 0 && !of_pool);
      if (of_pool && !is_active(b)) idle += b.bytes;
    }
    if (s.paged) {
      bytes += idle;
    } else if (!in_use) {
      if (idle != 0)
        bytes += s.bytes;
      else
        largest_other = std::max(largest_other, s.bytes);
    }
  }
  return bytes >= largest_other ? bytes : 0;
}
