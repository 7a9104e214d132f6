/// Plain values for calls of an allocator: requests, frees, the results of trim and limit.
///
/// The pools use these as well. gpumem/allocator.hpp includes this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

/// The address and the size of every block are multiples of this.
inline constexpr std::size_t block_granularity = 512;

struct request {
  std::size_t bytes = 0;
  stream_ref stream{};
  int device = 0;                             ///< logical ordinal
  std::size_t alignment = block_granularity;  ///< a power of two
  std::uint64_t region = 0;  ///< from `open_region` for this stream; the region owns the block; 0: none
  /// The block's address, in the region's free memory; 0: anywhere. A multiple of 512 and of `alignment`.
  address place = 0;
  bool reports_capture_end = false;  ///< if `stream` captures: the caller calls `reported_captures_ended`
};

/// Optional statements of a free, which are checked against the block.
struct free_args {
  std::optional<stream_ref> stream{};  ///< the block is free in this stream's order; by default its own stream's
  std::optional<std::size_t> bytes{};  ///< as requested
  std::optional<int> device{};
};
using release [[deprecated("use free_args")]] = free_args;  ///< the name in 0.1

struct trim_result {
  std::uint64_t returned_bytes = 0;
  std::uint64_t in_use_bytes = 0;   ///< free bytes that stay, in segments with live blocks
  std::uint64_t pending_bytes = 0;  ///< free bytes whose fences could not be awaited (during a capture)
  std::uint64_t kept_bytes = 0;     ///< wholly idle, but the policy keeps it (grab_all)
};

struct limit_result {
  std::uint64_t limit_bytes = 0;     ///< now in force
  std::uint64_t reserved_bytes = 0;  ///< still held
  std::uint64_t over_bytes = 0;      ///< reserved beyond the limit, because it could not be given back
  std::uint64_t live_bytes = 0;      ///< the part of `reserved_bytes` that the program uses
  trim_result trimmed;               ///< the bytes returned, and those that stayed, by reason
  [[nodiscard]] std::string to_string() const;
};

struct block_info {
  address begin = 0;
  std::uint64_t bytes = 0;  ///< the block, a multiple of 512
  std::uint64_t requested_bytes = 0;
  address segment_begin = 0;
  std::uint64_t segment_bytes = 0;
  int device = 0;
  bool mapped = false;  ///< mapped memory, for which the driver has no legacy IPC handle
};

/// One block of a segment, in any state.
struct block_view {
  enum class state : std::uint8_t {
    live,      ///< the program holds it
    cached,    ///< free, reusable at once on `stream`
    idle,      ///< free for any stream
    fenced,    ///< free once a fence is done
    leaked,    ///< never reused
    unbacked,  ///< addresses without memory
  };
  address begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;  ///< of a live block
  stream_ref stream{};                ///< the block's stream; the default stream for an idle block
  /// The region or graph that owns the block; 0: none. A live block of one that has ended is its until it is freed.
  std::uint64_t region = 0;
  state is = state::idle;
};

/// One segment and all its blocks, by address and without gaps.
struct segment_view {
  address begin = 0;
  std::uint64_t bytes = 0;
  bool paged = false;  ///< a range of addresses with memory behind some of its pages
  std::vector<block_view> blocks;
};

/// How a device's segments are divided, from counters: costs the same whatever the number of blocks. A piece is a run
/// of adjacent blocks with memory that belong to one region, or to none.
struct piece_statistics {
  struct region_bytes {
    std::uint64_t region = 0;
    std::uint64_t bytes = 0;
    std::uint64_t live_bytes = 0;
  };
  std::uint64_t pieces = 0;
  std::uint64_t fenced_blocks = 0;
  std::uint64_t split_blocks = 0;  ///< neither live nor fenced, in a piece with other blocks
  std::uint64_t split_bytes = 0;
  std::vector<region_bytes> regions{};  ///< those that have not ended, graphs included
};

/// Called before a request fails. Frees memory through any allocator and returns true to retry the request, or returns
/// false. Called without a lock held.
using oom_callback = std::function<bool(int device, std::uint64_t needed_bytes)>;

}  // namespace gpumem
