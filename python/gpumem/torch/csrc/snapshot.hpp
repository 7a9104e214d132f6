// PyTorch's segments, computed from a memory map.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "memory_source.hpp"
#include "pieces.hpp"
#include "segments.hpp"

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
