// The pool: threads' caches before an arena. A logical device is one pool.
//
// A thread's cache serves a request without a lock (src/cache). Otherwise, under the arena's lock, the caches' depot or
// the arena does. The caches' pointer map tells which addresses the program holds, and so which frees and
// uses are valid. Files: pool.cpp (requests and frees), pool_check.cpp (statistics and invariant checks).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "arena.hpp"
#include "block_cache.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/request.hpp"
#include "gpumem/statistics.hpp"

namespace gpumem {

struct pool_config : arena_config {
  bool thread_cache = true;
  std::uint64_t allocator_number = 0;  ///< the owning allocator's number, which is never reused
  /// Called for every free before the block can be handed out again, under the pool's lock; may be empty.
  std::function<void(address at, std::uint64_t requested_bytes, stream_ref order)> before_free;
  std::uint64_t history_events = 0;  ///< GPUMEM_HISTORY
};

class pool final : private cache_source, private cache_client {
 public:
  /// `device` must outlive the pool. Takes nothing from the device yet.
  pool(device& device, pool_config config, std::unique_ptr<policy> policy);
  /// Returns every segment to the device; no other call may be under way.
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  /// Without the lock: a block from this thread's cache, or 0 (block_cache.hpp). `requested` may be anything.
  [[nodiscard]] address try_cache(stream_ref stream, std::uint64_t requested) noexcept {
    const stream_order& streams = arena_.streams();
    return streams.key_is_known(stream) ? cache_.allocate_by_key(streams.known_key(stream), requested, stream) : 0;
  }
  /// Without the lock: true if this thread's cache took the block.
  [[nodiscard]] bool free_to_cache(address pointer, const free_args& stated) noexcept;
  /// Without the lock: true if this thread deferred a free behind all work of the device (context_order.hpp); else the
  /// caller calls `release_block`.
  [[nodiscard]] bool free_behind_all_work(address pointer) noexcept;

  /// Takes the memory that the policy wants ahead of demand (`arena::open`).
  status open_ahead();
  /// Requires that `request.bytes` is not 0 and `request.alignment` is a power of two. `rounded` is `request.bytes`
  /// rounded up to 512. Sets `begin` to the block's address on success.
  status allocate(const request& request, std::uint64_t rounded, address* begin, oom_slot* refusal);
  /// `unknown_pointer` if no block of this pool begins there.
  status release_block(address pointer, const free_args& stated);
  status record_use(address pointer, stream_ref stream);

  /// The arena, for streams, captures, regions and callbacks.
  [[nodiscard]] arena& below() noexcept { return arena_; }
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref stream) const { return arena_.streams().key_of(stream); }

  trim_result trim(std::uint64_t bytes);
  /// Sets the limit for later requests. `keep_limit` gives back the bytes above it.
  void set_limit(std::uint64_t limit_bytes);
  limit_result keep_limit(std::uint64_t limit_bytes);
  void count_misuse();

  /// True if a segment of this pool covers the address.
  [[nodiscard]] bool contains(address pointer) const;
  [[nodiscard]] result<block_info> describe(address pointer) const;
  [[nodiscard]] statistics stats();
  [[nodiscard]] std::vector<segment_view> segments() const;
  [[nodiscard]] piece_statistics pieces() const;
  /// The kept allocations and frees, with the blocks that were live before them. Requires `history_events`. Slow.
  [[nodiscard]] pool_history history() const;
  /// The number of events so far. Requires `history_events`.
  [[nodiscard]] std::uint64_t noted_events() const noexcept { return cache_.history().noted(); }
  /// The latest slow-path events.
  [[nodiscard]] std::vector<flight_event> flight() const;
  void reset_peak_reserved();
  [[nodiscard]] status check() const;
  [[nodiscard]] const pool_config& config() const noexcept { return config_; }

 private:
  // cache_source: the caches call the arena; cache_client: the arena calls the caches.
  void free_block(block_index index, owner_id owner) noexcept GPUMEM_UNDER_LOCK override {
    arena_.free_block(index, owner);
  }
  void free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept GPUMEM_UNDER_LOCK override {
    arena_.free_behind_fence(blocks, batch_fence);
  }
  void ref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK override { arena_.ref_owner(owner); }
  void unref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK override { arena_.unref_owner(owner); }
  [[nodiscard]] std::uint64_t out_bytes() const noexcept GPUMEM_UNDER_LOCK override {
    return arena_.blocks().totals().live_bytes;
  }
  [[nodiscard]] class_usage usage_of(unsigned segment_class) const noexcept GPUMEM_UNDER_LOCK override;
  bool reclaim_all() override { return cache_.reclaim_all(); }
  void reclaim(owner_id only) override { cache_.reclaim(only); }
  void pressure() noexcept override { cache_.pressure(); }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept override { return cache_.live_bytes(); }
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept override { return cache_.peak_live_bytes(); }

  void thread_ends(thread_cache& cache);
  [[nodiscard]] result<std::uint64_t> key_of_stated(address pointer, stream_ref stream);
  [[nodiscard]] bool is_plain(owner_id owner, std::uint64_t bytes) const noexcept GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool cacheable(owner_id owner, std::uint64_t bytes) const noexcept GPUMEM_UNDER_LOCK;
  /// Records an event if the pool keeps a history.
  void note(thread_cache* mine, event_kind kind, address pointer, std::uint64_t requested_bytes,
            stream_ref stream) noexcept GPUMEM_UNDER_LOCK {
    if (cache_.has_history()) cache_.note(mine, kind, pointer, requested_bytes, stream);
  }
  address hand_out(block_index index, owner_id owner, std::uint64_t requested_bytes) GPUMEM_UNDER_LOCK;
  status out_of_memory(arena_lock& lock, const request& request, const pending_request& pending,
                       oom_slot* refusal) GPUMEM_UNDER_LOCK;
  void fence_all_work(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;
  [[nodiscard]] cached_stream stream_of(owner_id owner) const noexcept GPUMEM_UNDER_LOCK;
  status refuse_free(address pointer, const pointer_map::lookup& seen) GPUMEM_UNDER_LOCK;
  status why_not_live(address pointer, const pointer_map::lookup& seen) const GPUMEM_UNDER_LOCK;
  status not_in_live_block(address pointer) const;
  [[nodiscard]] owner_word held_as(block_index index) const noexcept GPUMEM_UNDER_LOCK;
  [[nodiscard]] statistics stats_of_stopped() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] std::vector<segment_view> segments_of_stopped() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] piece_statistics pieces_of_stopped() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_blocks(const statistics& figures) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_caches() const GPUMEM_UNDER_LOCK;

  const pool_config config_;
  device& device_;
  block_cache cache_;
  arena arena_;
  struct {
    std::uint32_t frees = 0;
    std::uint64_t bytes = 0;
  } unfenced_ GPUMEM_GUARDED_BY(under_arena_lock);  // context-ordered frees under the lock since the last fence
  status no_report_;                                // for a failed request if the host has no memory for a report
};

}  // namespace gpumem
