// The pool: threads' caches before an arena. A logical device is one pool.
//
// A request is served by its thread's cache without a lock (src/cache), or under the arena's lock (src/arena): by the
// caches' depot, else by the arena. The pool knows which addresses the program holds, by the caches' pointer map, and
// so what a free or a use may name. Files: pool.cpp (requests and frees), pool_check.cpp (statistics, the proof that
// nothing is lost).
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
  std::uint64_t allocator_number = 0;  ///< of the allocator that it is part of, which no later one repeats
  /// Told of every free before the block can be given out again, under the pool's lock; may be empty.
  std::function<void(address at, std::uint64_t requested_bytes, stream_ref order)> before_free;
  std::uint64_t history_events = 0;  ///< GPUMEM_HISTORY
};

class pool final : private arena_below, private caches_above {
 public:
  /// `on` must outlive the pool. Takes nothing from the device yet.
  pool(device& on, pool_config config, std::unique_ptr<policy> decides);
  /// Returns every segment to the device; no other call may be under way.
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  /// Without the lock: a block from this thread's cache, or 0 (block_cache.hpp). `requested` may be anything.
  [[nodiscard]] address try_cache(stream_ref of, std::uint64_t requested) noexcept {
    const stream_order& streams = arena_.streams();
    return streams.key_is_known(of) ? cache_.allocate_by_key(streams.known_key(of), requested, of) : 0;
  }
  /// Without the lock: true where this thread's cache took the block.
  [[nodiscard]] bool free_to_cache(address at, const free_args& stated) noexcept;
  /// Without the lock: true where this thread has set aside a free behind all work of the device (all_work.hpp); else
  /// `release_block` is to be asked.
  [[nodiscard]] bool free_behind_all_work(address at) noexcept;

  /// What the policy takes ahead of demand, taken now (`arena::open`).
  status open_ahead();
  /// `r.bytes` is not 0 and `r.alignment` a power of two; `rounded` is `r.bytes` rounded up to 512.
  /// `at` is where the block begins, on success.
  status allocate(const request& r, std::uint64_t rounded, address* at, oom_slot* refusal);
  /// `unknown_pointer` where no block of this pool begins there.
  status release_block(address at, const free_args& stated);
  status record_use(address at, stream_ref s);

  /// Streams, captures, regions and callbacks, which are the arena's alone.
  [[nodiscard]] arena& below() noexcept { return arena_; }
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref s) const { return arena_.streams().key_of(s); }

  trim_result trim(std::uint64_t bytes);
  /// Sets the limit, which requests keep from then on. What the pool holds above it is given back by `keep_limit`.
  void set_limit(std::uint64_t limit_bytes);
  limit_result keep_limit(std::uint64_t limit_bytes);
  void count_misuse();

  /// True where a segment of this pool covers the address.
  [[nodiscard]] bool contains(address at) const;
  [[nodiscard]] result<block_info> describe(address at) const;
  [[nodiscard]] statistics stats();
  [[nodiscard]] std::vector<segment_view> segments() const;
  /// The kept allocations and frees, with the blocks that were live before them. Requires `history_events`. Slow.
  [[nodiscard]] pool_history history() const;
  /// The number of events so far. Requires `history_events`.
  [[nodiscard]] std::uint64_t noted_events() const noexcept { return cache_.history().noted(); }
  /// The latest events of the slow path.
  [[nodiscard]] std::vector<flight_event> flight() const;
  void reset_peak_reserved();
  [[nodiscard]] status check() const;
  [[nodiscard]] const pool_config& config() const noexcept { return config_; }

 private:
  // What the caches ask of the arena, and the arena of the caches.
  void free_block(block_index i, owner_id o) noexcept GPUMEM_UNDER_LOCK override { arena_.free_block(i, o); }
  void free_behind_fence(std::span<const block_index> blocks, fence behind) noexcept GPUMEM_UNDER_LOCK override {
    arena_.free_behind_fence(blocks, behind);
  }
  void ref_owner(owner_id o) noexcept GPUMEM_UNDER_LOCK override { arena_.ref_owner(o); }
  void unref_owner(owner_id o) noexcept GPUMEM_UNDER_LOCK override { arena_.unref_owner(o); }
  [[nodiscard]] std::uint64_t out_bytes() const noexcept GPUMEM_UNDER_LOCK override {
    return arena_.blocks().totals().live_bytes;
  }
  [[nodiscard]] class_room room_of(unsigned klass) const noexcept GPUMEM_UNDER_LOCK override;
  bool reclaim_all() override { return cache_.reclaim_all(); }
  void reclaim(owner_id only) override { cache_.reclaim(only); }
  void pressure() noexcept override { cache_.pressure(); }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept override { return cache_.live_bytes(); }
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept override { return cache_.peak_live_bytes(); }

  void thread_ends(thread_cache& c);
  [[nodiscard]] result<std::uint64_t> key_of_stated(address at, stream_ref s);
  [[nodiscard]] bool is_plain(owner_id o, std::uint64_t bytes) const noexcept GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool cacheable(owner_id o, std::uint64_t bytes) const noexcept GPUMEM_UNDER_LOCK;
  /// Where the pool keeps a history: one event of it.
  void note(thread_cache* mine, event_kind kind, address at, std::uint64_t requested_bytes,
            stream_ref stream) noexcept GPUMEM_UNDER_LOCK {
    if (cache_.has_history()) cache_.note(mine, kind, at, requested_bytes, stream);
  }
  address hand_out(block_index i, owner_id o, std::uint64_t requested_bytes) GPUMEM_UNDER_LOCK;
  status out_of_memory(arena_lock& lock, const request& r, const pending_request& w,
                       oom_slot* refusal) GPUMEM_UNDER_LOCK;
  void fence_all_work(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;
  [[nodiscard]] cached_stream stream_of(owner_id o) const noexcept GPUMEM_UNDER_LOCK;
  status refuse_free(address at, const pointer_map::lookup& seen) GPUMEM_UNDER_LOCK;
  status why_not_live(address at, const pointer_map::lookup& seen) const GPUMEM_UNDER_LOCK;
  status not_in_live_block(address at) const;
  [[nodiscard]] owner_word held_as(block_index i) const noexcept GPUMEM_UNDER_LOCK;
  [[nodiscard]] statistics stats_of_stopped() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_blocks(const statistics& s) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_caches() const GPUMEM_UNDER_LOCK;

  const pool_config config_;
  device& device_;
  block_cache cache_;
  arena arena_;
  struct {
    std::uint32_t frees = 0;
    std::uint64_t bytes = 0;
  } unfenced_ GPUMEM_GUARDED_BY(under_arena_lock);  // behind all work, by the lock, since a fence was recorded
  status no_report_;                                // of a request that fails where the host has no memory for a report
};

}  // namespace gpumem
