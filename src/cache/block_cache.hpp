// Threads' caches before an arena: freed blocks, kept by thread, stream and exact size, to be had again without a lock.
//
// Files: cache_allocate.cpp and cache_free.cpp are the paths without the lock; block_cache.cpp is what caches and the
// arena hand each other under it; retention.hpp says how much is kept. To the arena a block in a cache is out, as the
// program's are; its owner word (pointer_map.hpp) says whose it is.
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
    /// False: serves under the lock alone, since somebody wants to be told of every free in order.
    bool without_lock = true;
    cache_place place;
    /// The latest events that are kept, of hits, too; 0: none, at no cost.
    std::uint64_t history_events = 0;
  };

  /// `source` and `device` outlive it. `thread_ends` is called by a thread that ends, with its cache: it takes the lock
  /// and calls `end`.
  block_cache(const device& device, cache_source& source, const options& how,
              std::function<void(thread_cache&)> thread_ends);
  block_cache(const block_cache&) = delete;
  block_cache& operator=(const block_cache&) = delete;
  /// Without the lock: no thread's end is told of from here on.
  void close() noexcept { caches_.close(); }

  // --- without the lock ------------------------------------------------------------------------------------
  /// A block of exactly this size (rounded up to 512) from this thread's cache, which `mine` is, for the stream that it
  /// served last, or 0. `requested` may be anything. No lock, no call.
  [[nodiscard]] address allocate(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept;
  /// The same for the stream of that key, once the thread has a cache. With `remember`, the stream's handle, which must
  /// be a name for good, `allocate` finds the stream from then on.
  [[nodiscard]] address allocate_by_key(std::uint64_t key, std::uint64_t requested,
                                        std::optional<stream_ref> remember = {}) noexcept;
  /// True where the thread's cache, which `mine` is, took the block for its own stream; false where it did not, for
  /// whatever reason, and nothing changed. `stated` may be null; its device is the caller's to look at.
  [[nodiscard]] bool free(thread_cache& mine, address pointer, const free_args* stated) noexcept;
  /// The same, where `stated` names the stream of that key, or none.
  [[nodiscard]] bool free_by_key(address pointer, std::optional<std::uint64_t> key, const free_args& stated) noexcept;
  /// The same, where `stated` names a created stream: the block's own, by its handle.
  [[nodiscard]] bool free_by_handle(address pointer, const free_args& stated) noexcept;
  enum class deferred : std::uint8_t {
    refused,    ///< nothing changed
    taken,      ///< the block waits to be brought to the arena
    fence_due,  ///< the same, and a fence is to be recorded behind it: `fence_aside`
  };
  /// Frees behind all work of the device, whatever stream the block is of.
  [[nodiscard]] deferred defer_free(address pointer) noexcept;
  /// `allocate` and `free` of a cache that keeps a history (`place` has `noted_hits`).
  [[nodiscard]] address allocate_noted(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_noted(thread_cache& mine, address pointer, const free_args* stated) noexcept;
  /// Attaches the fence that was due. False if the arena has the blocks by now; the fence is then still the caller's.
  [[nodiscard]] bool attach_fence(fence batch_fence) noexcept;

  // --- under the lock --------------------------------------------------------------------------------------
  /// This thread's cache, with its latest figures added to the totals; null if caches are off or the host has no memory
  /// for one.
  [[nodiscard]] thread_cache* mine() noexcept;
  /// A block from a batch of the depot, the rest of which goes to the thread's bin; 0 where there is none of that size.
  address refill(thread_cache& mine, const cached_stream& stream, std::uint64_t bytes, std::uint64_t requested);
  /// Puts a freed block, whose slot only the caller changes now, into the thread's cache. False if the cache does not
  /// keep it: the caller returns it to the arena.
  bool keep(thread_cache& mine, slot_index slot, const cached_stream& stream, std::uint64_t bytes,
            unsigned segment_class);
  /// Called before the arena serves anybody or takes a block back: returns what any thread keeps of a pair that
  /// repeats.
  void return_pair(const thread_cache* mine) noexcept;
  /// Brings the batches of what the thread freed aside to the arena: the complete ones, or `all`.
  void flush_deferred(thread_cache& cache, bool all = false) noexcept;
  /// Removes a block from the map and frees it in the arena.
  void return_block(slot_index slot, owner_id owner) noexcept;
  /// Returns all blocks of caches and depot to the arena; false if there were none.
  bool reclaim_all();
  /// Returns that owner's blocks and ends its stream caches; of every owner for `idle_owner`.
  void reclaim(owner_id only);
  /// A thread's cache ends; what it counted is added.
  void end(thread_cache& cache, std::uint64_t* allocations, std::uint64_t* frees, std::uint64_t* requested_bytes);

  /// Enters a block that left the arena. Throws std::bad_alloc if the host has no memory for its slot; caches may have
  /// been emptied then, and nothing else has changed.
  void insert(address pointer, block_index block, owner_word word);
  [[nodiscard]] pointer_map& pointers() noexcept { return pointers_; }
  [[nodiscard]] const pointer_map& pointers() const noexcept { return pointers_; }

  [[nodiscard]] bool has_history() const noexcept { return history_ != nullptr; }
  /// Keeps an event that comes by the lock. `mine` is the calling thread's cache, if it has one. Requires the history.
  void note(thread_cache* mine, event_kind kind, address pointer, std::uint64_t requested_bytes,
            stream_ref stream) noexcept;
  /// The kept events. Requires the history, and that every cache is stopped.
  [[nodiscard]] const event_history& history() const noexcept { return *history_; }

  void served_below(std::uint64_t bytes) noexcept { retention_.served_below(bytes, peak_live_bytes_); }
  void pressure() noexcept { retention_.pressure(); }

  // --- figures, under the lock -----------------------------------------------------------------------------
  /// The program has been handed a block.
  void note_live() noexcept;
  /// What the program holds, by each thread's figures when it last had the lock.
  [[nodiscard]] std::uint64_t live_bytes() const noexcept;
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept { return peak_live_bytes_; }

  /// Stops every other thread's cache while the object lives.
  [[nodiscard]] cache_registry::stop_caches stop() const { return cache_registry::stop_caches{caches_}; }
  /// Of all caches and the depot, as they are.
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
    key,           ///< of the stream with a key
    handle,        ///< of the stream that `free_args` names, where this thread used it last
    block_handle,  ///< of the stream that `free_args` names
  };
  [[nodiscard]] bool free_noted(thread_cache& mine, address pointer, const free_args* stated, match how,
                                std::uint64_t key) noexcept;
  [[nodiscard]] address try_stream(thread_cache& mine, stream_cache& stream, std::uint64_t requested) noexcept;
  address pop(thread_cache& mine, stream_cache::bin& bin, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_to_stream(thread_cache& mine, address pointer, const free_args* stated,
                                    const stream_cache* only, bool by_handle) noexcept;
  void fold(thread_cache& cache) noexcept;
  void count(thread_cache& cache, std::uint32_t units, std::int64_t blocks) noexcept;
  [[nodiscard]] stream_cache* cache_for(thread_cache& mine, const cached_stream& stream) noexcept;
  stream_cache::bin& bin_for(thread_cache& mine, stream_cache& stream, std::uint32_t units) noexcept;
  bool hand_over(thread_cache& mine, stream_cache& stream, stream_cache::bin& bin, std::uint64_t most);
  void shed(thread_cache& mine, std::uint64_t left) noexcept;
  void empty(thread_cache& cache, stream_cache& stream, stream_cache::bin& bin, std::uint32_t keep_latest = 0) noexcept;
  void close(thread_cache& cache, stream_cache& stream, stream_cache::bin& bin) noexcept;
  void empty(thread_cache& cache) noexcept;
  void forget(thread_cache& cache, owner_id only) noexcept;
  void empty_depot(owner_id only) noexcept;  // of every owner, where it is `idle_owner`
  void empty_stopped() noexcept;

  // What hits read without the lock. Nothing else lies in these lines, so that nobody's miss takes them away.
  alignas(64) const device& device_;
  pointer_map pointers_;

  alignas(64) cache_source& source_;
  const bool enabled_;
  const bool without_lock_;  // and without a history
  const bool notes_hits_;
  depot depot_;
  retention retention_;
  pair_watch pairs_;
  std::uint64_t in_caches_bytes_ = 0;  // as counted when each thread was here last
  std::uint64_t peak_live_bytes_ = 0;
  const std::unique_ptr<event_history> history_;
  history_chunk* events_of_others_ = nullptr;  // of threads without a cache, which come by the lock
  cache_registry caches_;
};

}  // namespace gpumem
