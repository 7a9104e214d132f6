// The pool: one logical device's memory. The front sees this header and those that it includes.
//
// A thread's cache serves a request without a lock (src/cache). Otherwise, under the pool's lock, the caches' depot or
// the arena does (arena.hpp). The caches' pointer map tells which addresses the program holds, and so which frees and
// uses are valid. Files: pool.cpp (requests and frees), pool_streams.cpp (streams and captures), pool_check.cpp
// (statistics and invariant checks).
#pragma once

#include <memory>
#include <vector>

#include "event_history.hpp"
#include "flight_record.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/request.hpp"
#include "gpumem/segment_observer.hpp"
#include "gpumem/statistics.hpp"
#include "pool_config.hpp"
#include "pool_streams.hpp"

namespace gpumem {

class pool {
 public:
  /// `device` must outlive the pool. Takes nothing from the device yet.
  pool(device& device, pool_config config, std::unique_ptr<policy> policy);
  /// Returns every segment to the device; no other call may be under way.
  ~pool();
  pool& operator=(pool&&) = delete;

  /// Without the lock: a block from this thread's cache, or 0. Asks no driver. `requested` may be anything.
  [[nodiscard]] address try_cache(stream_ref stream, std::uint64_t requested) noexcept;
  /// Without the lock: true if this thread's cache took the block.
  [[nodiscard]] bool free_to_cache(address pointer, const free_args& stated) noexcept;
  /// Without the lock: true if this thread deferred a free behind all work of the device (context_order.hpp); else the
  /// caller calls `release_block`.
  [[nodiscard]] bool free_behind_all_work(address pointer) noexcept;

  /// Takes the memory that the policy wants ahead of demand (`arena::open`).
  status open_ahead();
  /// Requires that `request.bytes` is not 0 and `request.alignment` is a power of two. `rounded` is `request.bytes`
  /// rounded up to 512. Sets `begin` to the block's address on success. `key`: the stream's, if the caller knows it.
  status allocate(const request& request, std::uint64_t rounded, address* begin, oom_slot* refusal,
                  std::optional<std::uint64_t> key = std::nullopt);
  /// `unknown_pointer` if no block of this pool begins there.
  status release_block(address pointer, const free_args& stated);
  status record_use(address pointer, stream_ref stream);

  /// Streams, captures and regions of this pool.
  [[nodiscard]] pool_streams& streams() noexcept { return streams_; }
  /// Needs no lock.
  void observe_segments(std::shared_ptr<segment_observer> observer);
  void on_out_of_memory(const oom_callback& callback);

  trim_result trim(std::uint64_t bytes);
  /// Sets the limit for later requests; gives nothing back.
  void set_limit(std::uint64_t limit_bytes);
  /// Gives idle memory back until the pool holds at most `limit_bytes`, as far as it can, and reports what remains.
  /// Does not set the limit.
  limit_result trim_to_limit(std::uint64_t limit_bytes);
  [[nodiscard]] std::uint64_t limit_bytes() const noexcept;
  void count_misuse();

  /// True if a segment of this pool covers the address.
  [[nodiscard]] bool contains(address pointer) const;
  [[nodiscard]] result<block_info> describe(address pointer) const;
  [[nodiscard]] statistics stats() const;
  [[nodiscard]] std::vector<segment_view> segments() const;
  [[nodiscard]] piece_statistics pieces() const;
  /// The kept allocations and frees, with the blocks that were live before them. Requires `history_events`. Slow.
  [[nodiscard]] pool_history history() const;
  /// The number of events so far. Requires `history_events`.
  [[nodiscard]] std::uint64_t noted_events() const noexcept;
  /// The latest slow-path events.
  [[nodiscard]] std::vector<flight_event> flight() const;
  void reset_peak_reserved();
  [[nodiscard]] status check() const;
  [[nodiscard]] const pool_config& config() const noexcept;

 private:
  friend struct pool_parts;  // for the tests of its parts
  [[nodiscard]] result<std::uint64_t> key_of_stated(address pointer, stream_ref stream);

  const std::unique_ptr<arena> arena_;
  arena_state& state_;
  pool_streams streams_;
};

}  // namespace gpumem
