// A pool's caches, one for each thread that uses it, and the way from a thread to its own.
//
// The way is one comparison for the pool that the thread used last, a short list for the others. A thread that ends
// gives its caches back; a pool that ends takes them with it. The list of caches is guarded by the pool's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "thread_cache.hpp"

namespace gpumem {

class block_cache;

/// Added to an allocator's number where its hits are to be kept in a history: those of `allocate_noted`.
inline constexpr std::uint64_t noted_hits = std::uint64_t{1} << 63;

/// Whose caches they are: numbers that no later allocator or pool of the process repeats. 0 is nobody's.
struct cache_place {
  std::uint64_t allocator = 0;
  int device = 0;  ///< logical ordinal
};

/// The cache that this thread used last. Where one of the numbers is the asker's, the pointers are good.
struct latest_cache {
  std::uint64_t allocator;
  std::uint64_t pool_number;
  int device;
  thread_cache* cache;
  block_cache* pool_cache;
};
// The model keeps the access one instruction in a shared library, too; these bytes fit what the loader keeps free.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local latest_cache tls_last_cache{~std::uint64_t{0}, 0, 0,
                                                                                             nullptr, nullptr};

/// What a thread's end needs of a pool that may be gone by then.
struct open_pool;

class cache_registry {
 public:
  /// `ends` is called, by a thread that ends, with its cache, which then is not that thread's any more; it takes the
  /// pool's lock and calls `remove`.
  cache_registry(block_cache& pool_cache, cache_place place, std::function<void(thread_cache&)> ends);
  ~cache_registry() { close(); }
  /// Without the pool's lock: `ends` is not called any more, and no call of it is under way.
  void close() noexcept;
  cache_registry(const cache_registry&) = delete;
  cache_registry& operator=(const cache_registry&) = delete;

  /// This thread's cache, or null. Any thread, no lock.
  [[nodiscard]] thread_cache* mine() const noexcept {
    const latest_cache& latest = tls_last_cache;
    return latest.pool_number == number_ ? latest.cache : look_up();
  }
  /// The pool's lock: the same, made where there is none; null in a thread that has begun to end.
  thread_cache* make_mine();
  void remove(thread_cache& cache) noexcept;

  [[nodiscard]] const std::vector<std::unique_ptr<thread_cache>>& all() const noexcept { return all_; }

  /// Stops every other thread's cache while the object lives: no thread is inside one. Requires the pool's lock.
  class stop_caches {
   public:
    explicit stop_caches(const cache_registry& caches);
    ~stop_caches();
    stop_caches(const stop_caches&) = delete;
    stop_caches& operator=(const stop_caches&) = delete;

   private:
    const cache_registry& caches_;
    const thread_cache* mine_;
  };

 private:
  [[nodiscard]] thread_cache* look_up() const noexcept;
  void note_latest(thread_cache* cache) const noexcept;

  block_cache& pool_cache_;
  cache_place place_;
  std::uint64_t number_;
  std::shared_ptr<open_pool> self_;
  std::vector<std::unique_ptr<thread_cache>> all_;
};

}  // namespace gpumem
