/// What a pool reports of itself: counters, and the report behind an out-of-memory.
///
/// Plain values, copied under the pool's lock: consistent in themselves. Bytes unless named otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

struct statistics {
  // Conservation: reserved = live + thread_cached + cached + fenced + idle + leaked, always.
  std::uint64_t reserved_bytes = 0;       ///< taken from the device
  std::uint64_t live_bytes = 0;           ///< in blocks the program holds, rounded up to 512
  std::uint64_t thread_cached_bytes = 0;  ///< in threads' caches, and between these
  std::uint64_t cached_bytes = 0;         ///< free, reusable at once on the stream that freed it
  std::uint64_t fenced_bytes = 0;         ///< free once a fence is done
  std::uint64_t idle_bytes = 0;           ///< free for any stream
  std::uint64_t leaked_bytes = 0;         ///< never reused, because the driver failed on its fence

  std::uint64_t requested_bytes = 0;  ///< of `live_bytes`, what was asked for
  /// Exact while one thread allocates; with several, off by at most what the others' caches held or took in since these
  /// threads last took the pool's lock.
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t limit_bytes = 0;           ///< the cap in force
  std::uint64_t largest_free_bytes = 0;    ///< largest block that is cached, fenced or idle
  std::uint64_t asked_at_start_bytes = 0;  ///< what a policy that takes memory ahead of demand asked for
  std::uint64_t got_at_start_bytes = 0;    ///< and what it got
  std::uint64_t metadata_bytes = 0;        ///< host memory of the pool's own records

  std::uint64_t live_blocks = 0;
  std::uint64_t free_blocks = 0;
  std::uint64_t peak_blocks = 0;  ///< most blocks, live and free, at once
  std::uint64_t segments = 0;
  std::uint64_t streams = 0;

  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t misuses = 0;        ///< frees that were refused
  std::uint64_t out_of_memory = 0;  ///< requests that failed
  std::uint64_t grown_segments = 0;
  std::uint64_t returned_segments = 0;
  std::uint64_t taken_bytes =
      0;  ///< from the device, in all: what went back has been `taken_bytes` less `reserved_bytes`
  std::uint64_t mapped_pages = 0;     ///< made and mapped behind a range of addresses
  std::uint64_t remapped_pages = 0;   ///< taken from where they were idle and mapped elsewhere
  std::uint64_t returned_pages = 0;   ///< unmapped and given back to the device
  std::uint64_t plan_placements = 0;  ///< blocks at their planned places, and those that got another one
  std::uint64_t plan_departures = 0;
  std::uint64_t locks = 0;         ///< times that the pool's lock was taken, but for asking it of itself
  std::uint64_t fences = 0;        ///< recorded
  std::uint64_t host_waits = 0;    ///< the host waited for a fence
  std::uint64_t device_waits = 0;  ///< a stream was made to wait for one
};

/// Why a request failed, in the order in which the cause is decided.
enum class oom_cause : std::uint8_t {
  none,
  limit,          ///< the pool's limit leaves no room
  device_full,    ///< the device (other processes and libraries included) leaves no room
  fragmentation,  ///< enough is free in the pool, but not in one piece
  pending_work,   ///< a block that fits waits for work that could not be waited for (a capture, a failed fence)
  driver_error,   ///< the driver failed for another reason
};
std::string_view to_string(oom_cause cause) noexcept;

struct oom_report {
  oom_cause cause = oom_cause::none;
  std::string pool;  ///< the logical device
  std::string policy;
  std::uint64_t requested_bytes = 0;
  std::uint64_t rounded_bytes = 0;
  std::uint64_t device_total_bytes = 0;
  std::uint64_t device_free_bytes = 0;
  std::string driver_message;  ///< of the last refused call, if any
  statistics pool_statistics;
  std::string group{};  ///< GPUMEM_GROUP, with what its members may hold together and do hold
  std::uint64_t group_limit_bytes = 0;
  std::uint64_t group_held_bytes = 0;

  /// The first line says what failed, why, and what to do; the rest are the figures.
  [[nodiscard]] std::string to_string() const;
  /// The first line of it.
  [[nodiscard]] std::string headline() const;
};

/// Where a refusal is reported. Null until there is one, so that an allocation that succeeds does not pay for it.
using oom_slot = std::unique_ptr<oom_report>;

}  // namespace gpumem
