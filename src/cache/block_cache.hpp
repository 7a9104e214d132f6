// Threads' caches before an arena: freed blocks, kept by thread, stream and exact size, and reused without a lock.
//
// Files: cache_allocate.cpp and cache_free.cpp are the paths without the lock; block_cache.cpp moves blocks between
// caches and arena under it; retention.hpp limits how much is kept. For the arena a cached block is out, like the
// program's; its owner word (pointer_map.hpp) says who holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cache_registry.hpp"
#include "cache_source.hpp"
#include "depot.hpp"
#include "event_history.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"
#include "pair_watch.hpp"
#include "pointer_map.hpp"
#include "retention.hpp"

namespace gpumem {

class block_cache {
 public:
  struct options {
    bool enabled = true;
    /// False: serves under the lock alone, because an observer needs every free in order.
    bool without_lock = true;
    cache_place place;
    /// The number of latest events to keep, hits included; 0: none, at no cost.
    std::uint64_t history_events = 0;
  };

  /// `source` and `device` outlive it. A thread that ends calls `thread_ends` with its cache; that takes the lock and
  /// calls `end`.
  block_cache(const device& device, cache_source& source, const options& how,
              std::function<void(thread_cache&)> thread_ends);
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;
  /// Without the lock: after this, `thread_ends` is not called any more.
  void close() noexcept { caches_.close(); }

  // --- without the lock ------------------------------------------------------------------------------------
  /// A block of exactly this size (rounded up to 512) for the stream that `mine`, this thread's cache, served last; or
  /// 0. `requested` may be anything. Takes no lock, makes no call.
  [[nodiscard]] address allocate(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept;
  /// The same for the stream with `key`, once the thread has a cache. After a call with `remember`, the stream's
  /// handle, `allocate` finds the stream. The handle must never name another stream.
  [[nodiscard]] address allocate_by_key(std::uint64_t key, std::uint64_t requested,
                                        std::optional<stream_ref> remember = {}) noexcept;
  /// True if `mine`, this thread's cache, took the block for the block's own stream. False if it did not, for any
  /// reason; nothing changed. `stated` may be null; the caller checks its device.
  [[nodiscard]] bool free(thread_cache& mine, address pointer, const free_args* stated) noexcept;
  /// The same, if `stated` names the stream with `key`, or none.
  [[nodiscard]] bool free_by_key(address pointer, std::optional<std::uint64_t> key, const free_args& stated) noexcept;
  /// The same, if `stated` names a created stream: the block's own, by its handle.
  [[nodiscard]] bool free_by_handle(address pointer, const free_args& stated) noexcept;
  enum class deferred : std::uint8_t {
    refused,    ///< nothing changed
    taken,      ///< the block waits for a later flush to the arena
    fence_due,  ///< the same, and the caller records a fence behind it: `attach_fence`
  };
  /// Frees a block of any stream behind all work of the device.
  [[nodiscard]] deferred defer_free(address pointer) noexcept;
  /// `allocate` and `free` for a cache that keeps a history (`place` has `noted_hits`).
  [[nodiscard]] address allocate_noted(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_noted(thread_cache& mine, address pointer, const free_args* stated) noexcept;
  /// Attaches the fence that was due. False if the arena has the blocks already; the caller then still owns the fence.
  [[nodiscard]] bool attach_fence(fence batch_fence) noexcept;

  // --- under the lock --------------------------------------------------------------------------------------
  /// This thread's cache, with its latest figures added to the totals; null if caches are off or the host has no memory
  /// for one.
  [[nodiscard]] thread_cache* mine() noexcept;
  /// Serves a miss from a depot batch, and puts the rest of the batch into the thread's bin. 0 if the depot has no
  /// batch of that size; then it has also returned the thread's deferred frees and the block of a repeating pair to
  /// the arena, which serves the request. No `stream`: no cache may hold the block. `bytes` is `asked.bytes` rounded
  /// up.
  address refill(const std::optional<cached_stream>& stream, std::uint64_t bytes, const request& asked);
  /// Puts a freed block into the thread's cache. Only the caller may change its slot now. False if the cache does not
  /// keep it: the caller returns it to the arena.
  bool keep(thread_cache& mine, slot_index slot, const cached_stream& stream, std::uint64_t bytes,
            unsigned segment_class);
  /// Returns the block of a repeating pair, if a thread keeps one. Called before the arena serves a request or takes a
  /// block back.
  void return_pair(const thread_cache* mine) noexcept;
  /// Removes a block from the map and frees it in the arena.
  void return_block(slot_index slot, owner_id owner) noexcept;
  /// Returns all blocks of caches and depot to the arena; false if there were none.
  bool reclaim_all();
  /// Returns the owner's blocks and ends its stream caches; those of every owner for `idle_owner`.
  void reclaim(owner_id only);
  /// Ends a thread's cache and adds its counters to the arguments.
  void end(thread_cache& cache, std::uint64_t* allocations, std::uint64_t* frees, std::uint64_t* requested_bytes);

  /// Adds a block that leaves the arena for the program. Throws std::bad_alloc if the host has no memory for its slot;
  /// caches may have been emptied then, and nothing else has changed.
  void insert(address pointer, block_index block, owner_word word);
  [[nodiscard]] pointer_map& pointers() noexcept { return pointers_; }
  [[nodiscard]] const pointer_map& pointers() const noexcept { return pointers_; }

  /// Records an event made under the lock, if there is a history.
  void note(event_kind kind, address pointer, std::uint64_t requested_bytes, stream_ref stream) noexcept {
    if (history_ != nullptr) note_event(kind, pointer, requested_bytes, stream);
  }
  /// The kept events. Requires the history, and that every cache is stopped.
  [[nodiscard]] const event_history& history() const noexcept { return *history_; }

  void pressure() noexcept { retention_.pressure(); }

  // --- figures, under the lock -----------------------------------------------------------------------------
  /// The bytes that the program holds, as of each thread's last time under the lock.
  [[nodiscard]] std::uint64_t live_bytes() const noexcept;
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept { return peak_live_bytes_; }

  /// Stops every other thread's cache while the object lives.
  [[nodiscard]] cache_registry::stop_caches stop() const { return cache_registry::stop_caches{caches_}; }
  /// Totals of all caches and the depot.
  struct sums {
    std::uint64_t held_bytes = 0;
    std::uint64_t held_blocks = 0;
    std::uint64_t peak_live_bytes = 0;
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t requested_bytes = 0;  ///< modulo 2^64
    std::uint64_t metadata_bytes = 0;
  };
  /// Requires that every cache is stopped.
  [[nodiscard]] sums add_up() const;
  /// Calls `each(slot, units, owner)` for every block in a cache or the depot. Requires that every cache is stopped.
  void for_each_held(const std::function<void(slot_index, std::uint32_t, owner_id)>& each) const;

 private:
  [[nodiscard]] thread_cache* mine_without_lock() const noexcept { return without_lock_ ? caches_.mine() : nullptr; }
  /// This thread's cache if hits are noted; null otherwise, and before the thread has one.
  [[nodiscard]] thread_cache* mine_noted() const noexcept { return notes_hits_ ? caches_.mine() : nullptr; }
  [[nodiscard]] address allocate_by_key_noted(std::uint64_t key, std::uint64_t requested,
                                              std::optional<stream_ref> remember) noexcept;
  /// Which stream the block of a free must belong to.
  enum class match : std::uint8_t {
    any,           ///< any stream's
    key,           ///< the stream with a given key
    handle,        ///< the stream that `free_args` names, if this thread used it last
    block_handle,  ///< the stream that `free_args` names
  };
  [[nodiscard]] bool free_noted(thread_cache& mine, address pointer, const free_args* stated, match how,
                                std::uint64_t key) noexcept;
  [[nodiscard]] address try_stream(thread_cache& mine, stream_cache& stream, std::uint64_t requested) noexcept;
  address pop(thread_cache& mine, stream_cache::bin& bin, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_to_stream(thread_cache& mine, address pointer, const free_args* stated,
                                    const stream_cache* only, bool by_handle) noexcept;
  address take_batch(thread_cache& mine, const cached_stream& stream, std::uint64_t bytes, std::uint64_t requested);
  void note_event(event_kind kind, address pointer, std::uint64_t requested_bytes, stream_ref stream) noexcept;
  void fold(thread_cache& cache) noexcept;
  void count(thread_cache& cache, std::uint32_t units, std::int64_t blocks) noexcept;
  [[nodiscard]] stream_cache* cache_for(thread_cache& mine, const cached_stream& stream) noexcept;
  stream_cache::bin& bin_for(thread_cache& mine, stream_cache& stream, std::uint32_t units) noexcept;
  void flush_deferred(thread_cache& cache, bool all) noexcept;
  bool hand_over(thread_cache& mine, stream_cache& stream, stream_cache::bin& bin, std::uint64_t most);
  void shed(thread_cache& mine, std::uint64_t left) noexcept;
  void empty(thread_cache& cache, stream_cache& stream, stream_cache::bin& bin, std::uint32_t keep_latest = 0) noexcept;
  void close(thread_cache& cache, stream_cache& stream, stream_cache::bin& bin) noexcept;
  void empty(thread_cache& cache) noexcept;
  void forget(thread_cache& cache, owner_id only) noexcept;
  void empty_depot(owner_id only) noexcept;  // for every owner if it is `idle_owner`
  void empty_stopped() noexcept;

  // Hits read these without the lock. They have their own cache lines, so that misses do not invalidate them.
  alignas(64) const device& device_;
  pointer_map pointers_;

  alignas(64) cache_source& source_;
  const bool enabled_;
  const bool without_lock_;  // and no history
  const bool notes_hits_;
  depot depot_;
  retention retention_;
  pair_watch pairs_;
  std::uint64_t in_caches_bytes_ = 0;  // as of each thread's last time under the lock
  std::uint64_t peak_live_bytes_ = 0;
  const std::unique_ptr<event_history> history_;
  history_chunk* events_of_others_ = nullptr;  // events of threads without a cache, under the lock
  cache_registry caches_;
};

}  // namespace gpumem
