// PyTorch's segments, computed from a memory map: pieces of one pool each, without address ranges that have no memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "memory_source.hpp"
#include "segments.hpp"

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

/// Figures that need a walk over all blocks.
struct block_totals {
  std::size_t pieces = 0;
  std::size_t fenced = 0, fenced_bytes = 0;
  std::size_t split = 0, split_bytes = 0;  // inactive, in segments with other blocks
  std::size_t pool_bytes = 0, pool_live_bytes = 0;
  std::map<pool_id, std::size_t> bytes_by_pool{};
};
inline block_totals total_blocks(const memory_map& map) {
  block_totals totals;
  each_piece(map, [&](const segment_piece& piece) {
    ++totals.pieces;
    const bool alone = piece.end - piece.begin == 1;
    std::size_t bytes = 0, live = 0;
    for (const gpumem::block_view* b = piece.begin; b != piece.end; ++b) {
      bytes += b->bytes;
      if (b->is == gpumem::block_view::state::live) {
        live += b->bytes;
      } else if (b->is == gpumem::block_view::state::fenced) {
        ++totals.fenced;
        totals.fenced_bytes += b->bytes;
      } else if (!alone) {
        ++totals.split;
        totals.split_bytes += b->bytes;
      }
    }
    if (piece.pool == no_pool) return;
    totals.bytes_by_pool[piece.pool] += bytes;
    totals.pool_bytes += bytes;
    totals.pool_live_bytes += live;
  });
  return totals;
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

/// Numbers each pool's segments in the order of allocation, in which ProcessGroupNCCL registers them. `came` lists each
/// segment's pool, its allocation order on the device and its first address.
template <typename Info>
void number_segments(std::vector<Info>& infos, std::vector<std::tuple<pool_id, std::uint64_t, std::size_t>> came) {
  if constexpr (requires(Info & each) { each.registration_counter; }) {
    std::ranges::sort(came);
    std::map<pool_id, std::int64_t> numbers;
    std::map<std::size_t, std::int64_t> number_at;
    for (const auto& [pool, order, address] : came) number_at[address] = ++numbers[pool];
    for (Info& each : infos) {
      each.registration_counter = static_cast<decltype(each.registration_counter)>(number_at.at(each.address));
    }
  }
}

/// `segments` has the contexts and the order of gpumem's segments; `context_of_block` returns contexts by address.
template <typename BlockContext>
std::vector<c10::CachingDeviceAllocator::SegmentInfo> segment_infos(const memory_map& map, c10::DeviceIndex device,
                                                                    const segment_table::map& segments,
                                                                    const BlockContext& context_of_block) {
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> infos;
  std::vector<std::tuple<pool_id, std::uint64_t, std::size_t>> came;
  each_piece(map, [&](const segment_piece& piece) {
    c10::CachingDeviceAllocator::SegmentInfo& info = infos.emplace_back();
    info.device = device;
    info.address = piece.begin->begin;
    info.stream = piece.begin->stream.handle;
    info.is_large = true;
    info.is_expandable = piece.segment->paged;
    info.owner_private_pool_id = piece.pool;
    const segment_table::entry* const known = segment_table::around(segments, info.address);
    if (known != nullptr) info.context_when_allocated = known->context;
    came.emplace_back(piece.pool, known != nullptr ? known->number : piece.number, info.address);
    for (const gpumem::block_view* b = piece.begin; b != piece.end; ++b) {
      c10::CachingDeviceAllocator::BlockInfo& block = info.blocks.emplace_back();
      block.size = b->bytes;
      block.requested_size = b->requested_bytes;
      block.allocated = b->is == gpumem::block_view::state::live;
      block.active = is_active(*b);
      info.total_size += b->bytes;
      info.requested_size += b->requested_bytes;
      if (block.allocated) {
        info.allocated_size += b->bytes;
        block.context_when_allocated = context_of_block(b->begin);
      }
      if (block.active) info.active_size += b->bytes;
    }
  });
  std::ranges::sort(infos, {}, &c10::CachingDeviceAllocator::SegmentInfo::address);
  number_segments(infos, std::move(came));
  return infos;
}
