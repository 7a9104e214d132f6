// One thread's cache of one pool: freed blocks by stream and exact size, reused without a lock.
//
// Two threads may access a cache: its own between `enter` and `leave`, and one that holds the pool's lock and has
// stopped it (cache_registry.hpp). Its own thread, under the lock, need not stop it. Blocks in it are out of the heap,
// and their slots (pointer_map.hpp) say `cache`. A stream_cache (stream_cache.hpp) holds the blocks of each stream.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "asymmetric_fence.hpp"
#include "block_ids.hpp"
#include "deferred_frees.hpp"
#include "pointer_map.hpp"
#include "stream_cache.hpp"

namespace gpumem {

/// The first two count since the thread last held the pool's lock, the others since the cache was created.
struct cache_figures {
  std::int64_t handed_bytes = 0;         ///< handed out less taken in
  std::int64_t most_handed_bytes = 0;    ///< its maximum
  std::uint64_t requested_bytes = 0;     ///< handed out less taken in, modulo 2^64
  std::uint64_t limited_bytes = 0;       ///< held now, without small blocks
  std::uint64_t most_limited_bytes = 0;  ///< the limit of `limited_bytes`
  std::uint64_t frees = 0;               ///< blocks taken in
  std::uint64_t deferred_bytes = 0;      ///< bytes in `deferred` now
  // Under the lock only.
  std::uint64_t held_bytes = 0;  ///< as of the thread's last time there
  std::uint64_t filled = 0;      ///< blocks that came from the depot
  std::uint64_t emptied = 0;     ///< blocks that went to it or to the heap

  /// Bytes in bins without a limit, as of the thread's last time under the lock.
  [[nodiscard]] std::uint64_t unlimited_bytes() const noexcept { return held_bytes - limited_bytes - deferred_bytes; }
};

/// A thread's stream caches, indexed by a number of their streams. Holds up to `places` / 2.
template <std::uint32_t (*Home)(std::uint64_t number)>
class stream_index {
 public:
  static constexpr std::uint32_t places = 128;

  /// Null if there is none.
  [[nodiscard]] stream_cache* find(std::uint64_t number) const noexcept {
    const entry& home = entries_[Home(number) % places];
    return home.number == number ? home.cache : find_displaced(number);
  }
  /// Requires room, and no entry with that number.
  void insert(std::uint64_t number, stream_cache* cache) noexcept {
    std::uint32_t k = Home(number);
    while (entries_[k % places].cache != nullptr) ++k;
    entries_[k % places] = {number, cache};
  }
  /// Requires an entry with that number. Moves the entries after it up, so that each is found from its home on.
  void erase(std::uint64_t number) noexcept {
    std::uint32_t gap = Home(number);
    while (entries_[gap % places].number != number) ++gap;
    entries_[gap % places] = {};
    for (std::uint32_t k = gap + 1; entries_[k % places].cache != nullptr; ++k) {
      const entry moved = std::exchange(entries_[k % places], {});
      insert(moved.number, moved.cache);
    }
  }

 private:
  struct entry {
    std::uint64_t number = 0;
    stream_cache* cache = nullptr;
  };

  // Not inline, so that it takes no registers on the path of a hit.
  [[gnu::noinline]] stream_cache* find_displaced(std::uint64_t number) const noexcept {
    std::uint32_t k = Home(number);
    while (entries_[k % places].number != number && entries_[k % places].cache != nullptr) ++k;
    return entries_[k % places].cache;
  }

  std::array<entry, places> entries_{};
};

class history_chunk;

class alignas(64) thread_cache {
 public:
  static constexpr std::uint32_t most_streams = 64;

  thread_cache() noexcept : gate_{asymmetric_fences() ? gate_open : costly_fence} {}

  /// Called by its own thread. True if it may use the cache until `leave`; false if another thread has stopped the
  /// cache: the caller takes the pool's lock instead.
  [[nodiscard]] bool enter() noexcept {
    inside_.store(true, std::memory_order_relaxed);
    light_fence();
    const unsigned char gate = gate_.load(std::memory_order_seq_cst);
    if (gate == 0) [[likely]]
      return true;
    if (gate == costly_fence) {
      inside_.exchange(true, std::memory_order_seq_cst);
      if (gate_.load(std::memory_order_seq_cst) == costly_fence) return true;
    }
    leave();
    return false;
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  /// For another thread, under the pool's lock: `request_stop`, then `heavy_fence` once for all, then wait until not
  /// `inside`.
  void request_stop() noexcept { gate_.fetch_or(stopped, std::memory_order_seq_cst); }
  [[nodiscard]] bool inside() const noexcept { return inside_.load(std::memory_order_seq_cst); }
  void end_stop() noexcept { gate_.fetch_and(costly_fence, std::memory_order_release); }

  /// The latest stream's cache if that is its handle, else null. Only handles that never name another stream are
  /// remembered.
  [[nodiscard]] stream_cache* of_handle(const void* handle) const noexcept {
    return handle == latest_handle_ ? latest_ : nullptr;
  }
  void remember(const void* handle, stream_cache& stream) noexcept {
    latest_handle_ = handle;
    latest_ = &stream;
  }
  /// Null if this thread has none for the stream with that key, or for that owner.
  [[nodiscard]] stream_cache* of_key(std::uint64_t key) const noexcept { return by_key_.find(key); }
  [[nodiscard]] stream_cache* of_owner(owner_id owner) const noexcept { return by_owner_.find(owner); }
  /// Requires that there is none for that owner or key, and that it is not full.
  stream_cache& add(const cached_stream& stream) {
    if (streams_.size() == used_) streams_.push_back(std::make_unique<stream_cache>(stream));
    stream_cache& added = *streams_[used_++];
    added.begin(stream);
    by_key_.insert(stream.key, &added);
    by_owner_.insert(stream.owner, &added);
    return added;
  }
  /// Requires a stream cache for that owner, and that it is empty. One is kept for the next stream.
  void forget(owner_id owner) noexcept {
    stream_cache* const going = of_owner(owner);
    latest_handle_ = &no_stream;
    latest_ = nullptr;
    by_key_.erase(going->stream().key);
    by_owner_.erase(owner);
    --used_;
    std::swap(*std::ranges::find(streams_, going, &std::unique_ptr<stream_cache>::get), streams_[used_]);
    if (streams_.size() > used_ + 1) streams_.pop_back();
  }
  [[nodiscard]] bool full() const noexcept { return used_ == most_streams; }
  /// True for every 64th call: another stream may then replace one in a full cache. So a stream that comes again and
  /// again gets in, and most requests of the cached streams still hit.
  [[nodiscard]] bool may_replace() noexcept { return ++refusals_ % most_streams == 0; }
  /// The owner that is replaced next; each in turn. Requires that there is one.
  [[nodiscard]] owner_id next_replaced() noexcept { return streams_[replaced_++ % used_]->owner(); }
  /// The owner of any of its streams; `idle_owner` if there is none.
  [[nodiscard]] owner_id any_owner() const noexcept { return used_ != 0 ? streams_.front()->owner() : idle_owner; }
  /// Calls `each(stream_cache, bin)` for every bin in use, which may close it.
  template <typename Each>
  void for_each_bin(Each each) const {
    for (std::uint32_t k = 0; k < used_; ++k) {
      streams_[k]->for_each_in_use([&](stream_cache::bin& bin) { each(*streams_[k], bin); });
    }
  }
  /// The number of blocks in all bins and in the deferred frees.
  [[nodiscard]] std::uint64_t blocks() const noexcept {
    std::uint64_t sum = 0;
    for_each_bin([&sum](const stream_cache&, const stream_cache::bin& bin) { sum += bin.count; });
    for (const deferred_frees::batch& b : deferred.batches()) sum += b.count;
    return sum;
  }
  /// Blocks that this cache allocated: those that came, less those that are left or went.
  [[nodiscard]] std::uint64_t allocations() const noexcept {
    return figures.frees + figures.filled - figures.emptied - blocks();
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return sizeof(thread_cache) + streams_.capacity() * sizeof(void*) + streams_.size() * sizeof(stream_cache);
  }

 private:
  static constexpr unsigned char gate_open = 0;
  static constexpr unsigned char stopped = 1;
  static constexpr unsigned char costly_fence = 2;  ///< permanent: the kernel offers no fence without a cost here
  static constexpr char no_stream = 0;              ///< its address is no stream's handle

  std::atomic<bool> inside_{false};
  std::atomic<unsigned char> gate_;  ///< 0 if the thread may enter
  const void* latest_handle_ = &no_stream;
  stream_cache* latest_ = nullptr;

 public:
  cache_figures figures;
  deferred_frees deferred;
  /// Receives this thread's events if the pool keeps a history. Null before the first event, and without a history.
  history_chunk* events = nullptr;

 private:
  // Owners are small numbers; keys are the driver's, or handles.
  static constexpr std::uint32_t home_of_owner(std::uint64_t owner) noexcept {
    return static_cast<std::uint32_t>(owner);
  }
  static constexpr std::uint32_t home_of_key(std::uint64_t key) noexcept {
    return static_cast<std::uint32_t>(key * 0x9e37'79b9'7f4a'7c15U >> 32);
  }

  stream_index<home_of_owner> by_owner_;
  stream_index<home_of_key> by_key_;
  std::vector<std::unique_ptr<stream_cache>> streams_;  // those in use first, then at most one that is kept
  std::uint32_t used_ = 0;
  std::uint32_t refusals_ = 0;
  std::uint32_t replaced_ = 0;
};

}  // namespace gpumem
