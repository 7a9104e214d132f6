/// What is asked of an allocator and what it answers, as plain values: requests, frees, the results of trim and limit.
///
/// The pools speak in these, too; gpumem/allocator.hpp includes them all.
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

/// Every block starts at a multiple of this and is a multiple of it long.
inline constexpr std::size_t block_granularity = 512;

struct request {
  std::size_t bytes = 0;
  stream_ref stream{};
  int device = 0;                             ///< logical ordinal
  std::size_t alignment = block_granularity;  ///< a power of two
  std::uint64_t region = 0;                   ///< of `open_region`, which then owns the block; 0: none
  address place = 0;                          ///< where the block begins, in the region's free memory; 0: anywhere
};

/// What a free may state, to be checked against the block.
struct release {
  std::optional<stream_ref> stream{};  ///< in whose order the block is free; by default its own
  std::optional<std::size_t> bytes{};  ///< as requested
  std::optional<int> device{};
};

struct trim_result {
  std::uint64_t returned_bytes = 0;
  std::uint64_t in_use_bytes = 0;   ///< free bytes that stay: in segments with live blocks beside them
  std::uint64_t pending_bytes = 0;  ///< free bytes whose fences could not be waited for (a capture is running)
  std::uint64_t kept_bytes = 0;     ///< wholly idle, but the policy keeps it (grab_all)
};

struct limit_result {
  std::uint64_t limit_bytes = 0;     ///< now in force: nothing is taken beyond it
  std::uint64_t reserved_bytes = 0;  ///< still held
  std::uint64_t over_bytes = 0;      ///< what could not be given back: reserved beyond the limit
  std::uint64_t live_bytes = 0;      ///< of `reserved_bytes`, in use by the program
  trim_result trimmed;               ///< why the rest stayed
  [[nodiscard]] std::string to_string() const;
};

struct block_info {
  address begin = 0;
  std::uint64_t bytes = 0;  ///< the block, a multiple of 512
  std::uint64_t requested_bytes = 0;
  address segment_begin = 0;
  std::uint64_t segment_bytes = 0;
  int device = 0;
  bool mapped = false;  ///< behind reserved addresses: the driver makes no legacy IPC handle of it
};

/// One block of a segment, in whatever state.
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
  std::uint64_t requested_bytes = 0;  ///< of a live one
  stream_ref stream{};                ///< whose it is; of an idle one, the default stream
  std::uint64_t region = 0;           ///< that owns it, or the graph; 0: none
  state is = state::idle;
};

/// What the device gave in one piece, and the blocks that it is cut into, without a gap and by address.
struct segment_view {
  address begin = 0;
  std::uint64_t bytes = 0;
  bool paged = false;  ///< a range of addresses with memory behind some of its pages
  std::vector<block_view> blocks;
};

/// Called when a request fails and nothing gpumem holds can help: frees what it can (through any allocator)
/// and returns true to have the request tried again. Called without a lock held.
using oom_callback = std::function<bool(int device, std::uint64_t needed_bytes)>;

}  // namespace gpumem
