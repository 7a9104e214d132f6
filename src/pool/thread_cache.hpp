// What one thread keeps of one pool: freed blocks by stream and exact size, to be had again without a lock.
//
// A cache is touched by its thread between `enter` and `leave`, and by whoever holds the pool's lock and has claimed it
// (thread_caches.hpp); its own thread, under the lock, needs no claim. Blocks in it are out of the heap, and their
// claims (claims.hpp) say `cache`. What it keeps of each stream is in stream_cache.hpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "asymmetric_fence.hpp"
#include "block.hpp"
#include "claims.hpp"
#include "light_mutex.hpp"
#include "stream_cache.hpp"

namespace gpumem {

/// What happened in a cache since its thread held the pool's lock last (the first two), and since ever.
struct cache_figures {
  std::int64_t handed_bytes = 0;         ///< handed out less taken in
  std::int64_t most_handed_bytes = 0;    ///< its maximum
  std::uint64_t requested_bytes = 0;     ///< of what was handed out less of what was taken in, modulo 2^64
  std::uint64_t weighed_bytes = 0;       ///< held now, but for small blocks
  std::uint64_t most_weighed_bytes = 0;  ///< the limit of that
  // Not beside the other two that a free changes: a compiler would change both at once, and the next allocation's load
  // of one of them would wait until that store has left the processor's buffer.
  std::uint64_t frees = 0;     ///< taken in
  std::uint32_t deferred = 0;  ///< of those, blocks that wait for the heap
  std::uint64_t deferred_bytes = 0;
  // Under the lock only.
  std::uint64_t held_bytes = 0;  ///< when the thread was there last
  std::uint64_t filled = 0;      ///< blocks that came from the depot
  std::uint64_t emptied = 0;     ///< that went to it or to the heap
  bool on_condition = false;     ///< a bin may hold blocks on that condition
  std::uint64_t most_deferred_bytes = UINT64_MAX;

  /// One of any size; more as far as these are not too many bytes.
  [[nodiscard]] bool may_defer(std::uint64_t bytes) const noexcept {
    return deferred == 0 || (bytes <= most_deferred_bytes && deferred_bytes <= most_deferred_bytes - bytes);
  }
  /// Held when the thread was here last, in bins that count against no limit, and beside them.
  [[nodiscard]] std::uint64_t unweighed_bytes() const noexcept { return held_bytes - weighed_bytes - deferred_bytes; }
};

class alignas(64) thread_cache {
 public:
  /// A stream's cache takes some 100 KiB, and streams may end without a word.
  static constexpr std::uint32_t most_streams = 64;

  thread_cache() noexcept : bars_{asymmetric_fences() ? no_bars : costly_fence} {}

  /// The thread's own: true where it may go on, until `leave`. False where another has claimed the cache; the way then
  /// leads through the pool's lock.
  [[nodiscard]] bool enter() noexcept {
    inside_.store(true, std::memory_order_relaxed);
    light_fence();
    const unsigned char bars = bars_.load(std::memory_order_seq_cst);
    if (bars == 0) [[likely]]
      return true;
    if (bars == costly_fence) {
      inside_.exchange(true, std::memory_order_seq_cst);
      if (bars_.load(std::memory_order_seq_cst) == costly_fence) return true;
    }
    leave();
    return false;
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  /// The mark of the thread that made this, whose it is.
  [[nodiscard]] const char* thread() const noexcept { return thread_; }

  /// While no other thread uses the pool: what is the program's is this thread's alone to change. Asked inside.
  [[nodiscard]] bool alone() const noexcept { return alone_.load(std::memory_order_relaxed); }
  void set_alone(bool yes) noexcept { alone_.store(yes, std::memory_order_seq_cst); }

  /// Another thread's, under the pool's lock: announce, then `heavy_fence` once for all, then wait until it is out.
  void announce_claim() noexcept { bars_.fetch_or(claimed, std::memory_order_seq_cst); }
  [[nodiscard]] bool inside() const noexcept { return inside_.load(std::memory_order_seq_cst); }
  void end_claim() noexcept { bars_.fetch_and(costly_fence, std::memory_order_release); }

  /// The latest stream's where that is its handle, else null. A handle is remembered only while it is a name for good.
  [[nodiscard]] stream_cache* of_handle(const void* handle) const noexcept {
    return serves_latest(handle) ? latest_ : nullptr;
  }
  /// The two halves of that, for who has no use for a null.
  [[nodiscard]] bool serves_latest(const void* handle) const noexcept { return handle == latest_handle_; }
  /// The same from outside: true where a hit looked here just now, unless another thread emptied the cache meanwhile.
  [[nodiscard]] bool served_latest(const void* handle) noexcept {
    return std::atomic_ref{latest_handle_}.load(std::memory_order_relaxed) == handle;
  }
  /// Requires that some handle or tag is the latest's.
  [[nodiscard]] stream_cache& latest() const noexcept { return *latest_; }
  /// The tag of its live blocks' claims (claims.hpp), or no claim's.
  [[nodiscard]] std::uint64_t latest_tag() const noexcept { return latest_tag_; }
  /// Whether no handle is remembered.
  [[nodiscard]] bool serves_none() const noexcept { return latest_handle_ == &no_stream; }
  /// The latest for frees, by its owner. Requires that no handle is remembered.
  void remember_owner(stream_cache& s) noexcept { remember(&no_stream, s); }
  void remember(const void* handle, stream_cache& s) noexcept {
    set_latest_handle(handle);
    latest_tag_ = claim_word::plain_tag_of(s.owner());
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
  /// `made` serves that owner; null: a new one does. Requires that there is none for it, and less than `most_streams`.
  stream_cache& add(owner_id o, std::uint64_t key, std::unique_ptr<stream_cache> made = nullptr) {
    if (o >= by_owner_.size()) by_owner_.resize(o + 1);
    if (made != nullptr) {
      made->begin_anew(o, key);
    } else {
      made = std::make_unique<stream_cache>(o, key);
    }
    by_owner_[o] = std::move(made);
    ++streams_;
    return *by_owner_[o];
  }
  /// What served that owner. Requires that it is empty.
  std::unique_ptr<stream_cache> forget(owner_id o) noexcept {
    set_latest_handle(&no_stream);
    latest_tag_ = claim_word::no_tag;
    latest_ = nullptr;
    --streams_;
    return std::move(by_owner_[o]);
  }
  [[nodiscard]] bool full() const noexcept { return streams_ == most_streams; }
  /// Whose has to go for another one: each in turn. Requires that there is one.
  [[nodiscard]] owner_id next_to_go() noexcept {
    do {
      going_ = going_ + 1 < by_owner_.size() ? going_ + 1 : 0;
    } while (!by_owner_[going_]);
    return going_;
  }
  [[nodiscard]] owner_id owners() const noexcept { return static_cast<owner_id>(by_owner_.size()); }
  [[nodiscard]] std::uint64_t blocks() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& s : by_owner_) {
      if (!s) continue;
      sum += s->deferred().count;
      for (std::uint32_t at = s->next_in_use(0); at != stream_cache::no_bin; at = s->next_in_use(at + 1)) {
        sum += s->at(at).count;
        if (const auto* const beside = s->beside(s->at(at))) sum += std::uint64_t{beside->count} * stream_cache::batch;
      }
    }
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
  static constexpr unsigned char no_bars = 0;
  static constexpr unsigned char claimed = 1;
  static constexpr unsigned char costly_fence = 2;  ///< for good: the kernel offers none that costs nothing
  static constexpr char no_stream = 0;              ///< its address is no stream's handle

  // Atomic for who asks from outside; inside, it is read as it is.
  void set_latest_handle(const void* handle) noexcept {
    std::atomic_ref{latest_handle_}.store(handle, std::memory_order_relaxed);
  }

  std::atomic<bool> inside_{false};
  std::atomic<unsigned char> bars_;  ///< what stands in the way of who enters
  std::atomic<bool> alone_{false};
  const void* latest_handle_ = &no_stream;
  stream_cache* latest_ = nullptr;
  std::uint64_t latest_tag_ = claim_word::no_tag;

 public:
  cache_figures figures;
  std::uint32_t hand = 0;    ///< the bin behind the one looked at last, over all streams
  std::uint32_t misses = 0;  ///< while large blocks were held

 private:
  std::vector<std::unique_ptr<stream_cache>> by_owner_;
  std::uint32_t streams_ = 0;
  owner_id going_ = 0;
  const char* const thread_ = &mark_of_thread;
};

}  // namespace gpumem
