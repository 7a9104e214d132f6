// What one thread keeps of one pool: freed blocks by stream and exact size, to be had again without a lock.
//
// A cache is touched by its thread between `enter` and `leave`, and by whoever holds the pool's lock and has stopped it
// (thread_caches.hpp); its own thread, under the lock, need not stop it. Blocks in it are out of the heap, and their
// slots (pointer_map.hpp) say `cache`. What it keeps of each stream is in stream_cache.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "asymmetric_fence.hpp"
#include "block_ids.hpp"
#include "frees_aside.hpp"
#include "pointer_map.hpp"
#include "stream_cache.hpp"

namespace gpumem {

/// The first two count since the thread last held the pool's lock, the others since the cache exists.
struct cache_figures {
  std::int64_t handed_bytes = 0;         ///< handed out less taken in
  std::int64_t most_handed_bytes = 0;    ///< its maximum
  std::uint64_t requested_bytes = 0;     ///< of what was handed out less of what was taken in, modulo 2^64
  std::uint64_t limited_bytes = 0;       ///< held now, but for small blocks
  std::uint64_t most_limited_bytes = 0;  ///< the limit of that
  std::uint64_t frees = 0;               ///< taken in
  std::uint64_t aside_bytes = 0;         ///< of these, in `aside` now
  // Under the lock only.
  std::uint64_t held_bytes = 0;  ///< when the thread was there last
  std::uint64_t filled = 0;      ///< blocks that came from the depot
  std::uint64_t emptied = 0;     ///< that went to it or to the heap

  /// Held when the thread was here last, in bins that count against no limit.
  [[nodiscard]] std::uint64_t unlimited_bytes() const noexcept { return held_bytes - limited_bytes - aside_bytes; }
};

class alignas(64) thread_cache {
 public:
  /// A stream's cache takes some 100 KiB, and streams may end without a word.
  static constexpr std::uint32_t most_streams = 64;

  thread_cache() noexcept : gate_{asymmetric_fences() ? gate_open : costly_fence} {}

  /// The thread's own: true where it may go on, until `leave`. False where another thread has stopped the cache; the
  /// way then leads through the pool's lock.
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

  /// Another thread's, under the pool's lock: announce, then `heavy_fence` once for all, then wait until it is out.
  void request_stop() noexcept { gate_.fetch_or(stopped, std::memory_order_seq_cst); }
  [[nodiscard]] bool inside() const noexcept { return inside_.load(std::memory_order_seq_cst); }
  void end_stop() noexcept { gate_.fetch_and(costly_fence, std::memory_order_release); }

  /// The latest stream's where that is its handle, else null. A handle is remembered only while it is a name for good.
  [[nodiscard]] stream_cache* of_handle(const void* handle) const noexcept {
    return handle == latest_handle_ ? latest_ : nullptr;
  }
  void remember(const void* handle, stream_cache& s) noexcept {
    latest_handle_ = handle;
    latest_ = &s;
  }
  /// Null where this thread has none for the stream of that key, or for that owner.
  [[nodiscard]] stream_cache* of_key(std::uint64_t key) const noexcept {
    for (const auto& s : by_owner_) {
      if (s && s->key() == key) return s.get();
    }
    return nullptr;
  }
  [[nodiscard]] stream_cache* of_owner(owner_id o) const noexcept {
    return o < by_owner_.size() ? by_owner_[o].get() : nullptr;
  }
  /// Requires that there is none for that owner, and less than `most_streams`.
  stream_cache& add(owner_id o, std::uint64_t key) {
    if (o >= by_owner_.size()) by_owner_.resize(o + 1);
    by_owner_[o] = std::make_unique<stream_cache>(o, key);
    ++streams_;
    return *by_owner_[o];
  }
  /// Requires that there is one for that owner, and that it is empty.
  void forget(owner_id o) noexcept {
    latest_handle_ = &no_stream;
    latest_ = nullptr;
    --streams_;
    by_owner_[o] = nullptr;
  }
  [[nodiscard]] bool full() const noexcept { return streams_ == most_streams; }
  [[nodiscard]] owner_id owners() const noexcept { return static_cast<owner_id>(by_owner_.size()); }
  /// Calls `each(stream_cache, bin)` for every bin in use, which may close it.
  template <typename Each>
  void for_each_bin(Each each) const {
    for (const auto& s : by_owner_) {
      if (s) s->for_each_in_use([&](stream_cache::bin& b) { each(*s, b); });
    }
  }
  [[nodiscard]] std::uint64_t blocks() const noexcept {
    std::uint64_t sum = 0;
    for_each_bin([&sum](const stream_cache&, const stream_cache::bin& b) { sum += b.count; });
    for (const frees_aside::batch& b : aside.batches()) sum += b.count;
    return sum;
  }
  /// Served from here: what came less what is left and what went.
  [[nodiscard]] std::uint64_t allocations() const noexcept {
    return figures.frees + figures.filled - figures.emptied - blocks();
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    std::uint64_t bytes = sizeof(thread_cache) + by_owner_.capacity() * sizeof(void*);
    for (const auto& s : by_owner_) bytes += s ? sizeof(stream_cache) : 0;
    return bytes;
  }

 private:
  static constexpr unsigned char gate_open = 0;
  static constexpr unsigned char stopped = 1;
  static constexpr unsigned char costly_fence = 2;  ///< for good: the kernel offers none that costs nothing
  static constexpr char no_stream = 0;              ///< its address is no stream's handle

  std::atomic<bool> inside_{false};
  std::atomic<unsigned char> gate_;  ///< what stands in the way of who enters
  const void* latest_handle_ = &no_stream;
  stream_cache* latest_ = nullptr;

 public:
  cache_figures figures;
  frees_aside aside;

 private:
  std::vector<std::unique_ptr<stream_cache>> by_owner_;
  std::uint32_t streams_ = 0;
};

}  // namespace gpumem
