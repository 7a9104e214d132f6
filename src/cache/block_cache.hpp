// Threads' caches before an arena: freed blocks, kept by thread, stream and exact size, and reused without a lock.
//
// A hit needs no lock (fast_path.hpp); this class moves blocks between caches and arena under it, and retention.hpp
// limits how much is kept. For the arena a cached block is out, like the program's; its owner word (pointer_map.hpp)
// says who holds it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cache_registry.hpp"
#include "cache_source.hpp"
#include "depot.hpp"
#include "event_history.hpp"
#include "fast_path.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"
#include "pair_watch.hpp"
#include "pointer_map.hpp"
#include "repetition.hpp"
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
  block_cache& operator=(block_cache&&) = delete;
  /// Without the lock: after this, `thread_ends` is not called any more.
  void close() noexcept { caches_.close(); }

  /// The paths without the lock. All other functions require the lock.
  [[nodiscard]] fast_path& fast() noexcept { return fast_; }

  /// This thread's cache, with its latest figures added to the totals; null if caches are off or the host has no memory
  /// for one.
  [[nodiscard]] thread_cache* mine() noexcept;
  /// Serves a miss from a depot batch, and puts the rest of the batch into the thread's bin. 0 if the depot has none:
  /// the arena serves the request. Returns complete deferred batches to the arena before and, for 0, the block of a
  /// repeating pair. No `stream`: no cache may hold the block. `bytes` is `asked.bytes` rounded
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
  [[nodiscard]] pointer_map& pointers() noexcept { return fast_.pointers(); }
  [[nodiscard]] const pointer_map& pointers() const noexcept { return fast_.pointers(); }

  /// Records an event made under the lock, if there is a history.
  void note(event_kind kind, address pointer, std::uint64_t requested_bytes, stream_ref stream) noexcept {
    if (history_ != nullptr) note_event(kind, pointer, requested_bytes, stream);
  }
  /// The kept events. Requires the history, and that every cache is stopped.
  [[nodiscard]] const event_history& history() const noexcept { return *history_; }

  void pressure() noexcept { retention_.pressure(); }

  /// The bytes that the program holds, as of each thread's last time under the lock.
  [[nodiscard]] std::uint64_t live_bytes() const noexcept;
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept { return peak_live_bytes_; }
  /// Whether the program repeats its requests (repetition.hpp).
  [[nodiscard]] bool program_repeats() const noexcept { return repetition_.repeats(); }

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
  void empty_depot(owner_id only) noexcept;  // `idle_owner`: the blocks of all owners
  void empty_stopped() noexcept;

  const std::unique_ptr<event_history> history_;
  fast_path fast_;
  cache_source& source_;
  const bool enabled_;
  depot depot_;
  retention retention_;
  repetition repetition_;
  pair_watch pairs_;
  std::uint64_t in_caches_bytes_ = 0;  // as of each thread's last time under the lock
  std::uint64_t peak_live_bytes_ = 0;
  history_chunk* events_of_others_ = nullptr;  // events of threads without a cache, under the lock
  cache_registry caches_;
};

}  // namespace gpumem
