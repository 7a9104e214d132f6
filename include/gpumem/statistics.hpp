/// A pool's counters, and the report of a request that ran out of memory.
///
/// Plain values, copied under the pool's lock, so they are consistent. Bytes unless named otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

struct statistics {
  // Conservation: reserved = live + thread_cached + cached + fenced + idle + leaked, always.
  std::uint64_t reserved_bytes = 0;       ///< taken from the device
  std::uint64_t live_bytes = 0;           ///< in blocks the program holds, rounded up to 512
  std::uint64_t thread_cached_bytes = 0;  ///< in threads' caches and the depot between them
  std::uint64_t cached_bytes = 0;         ///< free; the stream that freed it may reuse it at once
  std::uint64_t fenced_bytes = 0;         ///< free once a fence is done
  std::uint64_t idle_bytes = 0;           ///< free for any stream
  std::uint64_t leaked_bytes = 0;         ///< never reused, because the driver failed on its fence

  std::uint64_t requested_bytes = 0;  ///< the exact sizes of the live blocks
  /// Exact if one thread allocates. With several, the error is at most the bytes that the other threads' caches held or
  /// received since their threads last took the pool's lock.
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t limit_bytes = 0;           ///< the limit in force
  std::uint64_t largest_free_bytes = 0;    ///< largest block that is cached, fenced or idle
  std::uint64_t asked_at_start_bytes = 0;  ///< asked for ahead of demand, at first use
  std::uint64_t got_at_start_bytes = 0;    ///< the part of `asked_at_start_bytes` that was received
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
  std::uint64_t taken_bytes = 0;      ///< from the device, in total; `taken_bytes - reserved_bytes` went back
  std::uint64_t mapped_pages = 0;     ///< made and mapped for the first time
  std::uint64_t remapped_pages = 0;   ///< moved from idle addresses to others
  std::uint64_t returned_pages = 0;   ///< unmapped and given back to the device
  std::uint64_t plan_placements = 0;  ///< blocks at their planned places
  std::uint64_t plan_departures = 0;  ///< blocks at other places
  std::uint64_t locks = 0;            ///< times that the pool's lock was taken, except by queries
  std::uint64_t fences = 0;           ///< recorded
  std::uint64_t host_waits = 0;       ///< the host waited for a fence
  std::uint64_t device_waits = 0;     ///< a stream had to wait for a fence
};

/// Why a request failed, in the order in which causes are checked.
enum class oom_cause : std::uint8_t {
  none,
  limit,          ///< the pool's limit leaves no room
  device_full,    ///< the device (other processes and libraries included) leaves no room
  fragmentation,  ///< pool and device together have enough, but not in one piece
  pending_work,   ///< memory that fits waits for a fence, or is in transit in another thread's driver call
  driver_error,   ///< the driver failed for another reason
};
std::string_view to_string(oom_cause cause) noexcept;

/// A process that holds memory of the card.
struct memory_holder {
  std::uint32_t pid = 0;
  std::uint64_t bytes = 0;  ///< 0: the driver does not say
  std::string name{};       ///< of its program; empty if unknown
};

struct oom_report {
  oom_cause cause = oom_cause::none;
  std::string pool;  ///< the logical device
  std::string policy;
  std::uint64_t requested_bytes = 0;
  std::uint64_t rounded_bytes = 0;
  std::uint64_t device_total_bytes = 0;
  std::uint64_t device_free_bytes = 0;
  std::string driver_message;  ///< of the last refused call
  statistics pool_statistics;
  std::string group{};  ///< GPUMEM_GROUP; the next two are its limit and its members' memory
  std::uint64_t group_limit_bytes = 0;
  std::uint64_t group_held_bytes = 0;
  bool group_is_job = false;        ///< the group is the processes of one `gpumem run --limit`
  std::string pending_on{};         ///< for `pending_work`: the reason for the wait, such as a stream
  std::uint64_t pending_bytes = 0;  ///< the bytes that wait
  /// For `device_full` the other processes on the card, as far as NVML lists them; for `limit` the members of the group
  /// whose limit is reached. Those with the most memory first.
  std::vector<memory_holder> holders{};
  static constexpr std::size_t most_events = 8;
  /// The pool's latest events besides requests served from its memory, the oldest first: `-1.250000 s segment_taken
  /// 2097152 reserved 4194304`. Seconds before the refusal, the event, its bytes (of a wait ns), the pool's bytes then.
  std::vector<std::string> recent_events{};

  /// The first line names the failure, its cause and a remedy; the figures follow.
  [[nodiscard]] std::string to_string() const;
  /// The first line of `to_string`.
  [[nodiscard]] std::string headline() const;
  /// The part of `headline` after the pool and the size: the cause and a remedy.
  [[nodiscard]] std::string explanation() const;
};

/// A place for the report of a refusal. Stays null, at no cost, if the allocation succeeds.
using oom_slot = std::unique_ptr<oom_report>;

}  // namespace gpumem
