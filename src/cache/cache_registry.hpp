// A pool's caches, one for each thread that uses it, and the lookup from a thread to its own.
//
// The lookup is one comparison for the pool that the thread used last, and a short list for the others. A thread that
// ends gives its caches back; a pool that ends destroys its caches. The pool's lock guards the list of caches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "thread_cache.hpp"

namespace gpumem {

class fast_path;

/// Added to an allocator's number if a history keeps its hits, which then go through `allocate_noted`.
inline constexpr std::uint64_t noted_hits = std::uint64_t{1} << 63;

/// Identifies a pool's caches. The process never reuses an allocator's or pool's number; 0 is none.
struct cache_place {
  std::uint64_t allocator = 0;
  int device = 0;  ///< logical ordinal
};

/// The cache that this thread used last. The pointers are valid if one of the numbers is the caller's.
struct latest_cache {
  std::uint64_t allocator;
  std::uint64_t pool_number;
  int device;
  thread_cache* cache;
  fast_path* fast;
};
// This model keeps the access to one instruction even in a shared library; the loader's static TLS reserve has room.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local latest_cache tls_last_cache{~std::uint64_t{0}, 0, 0,
                                                                                             nullptr, nullptr};

/// State for a thread's end, by which the pool may have ended.
struct open_pool;

class cache_registry {
 public:
  /// A thread that ends calls `ends` with its cache, and does not use it afterwards. `ends` takes the pool's lock and
  /// calls `remove`.
  cache_registry(fast_path& fast, cache_place place, std::function<void(thread_cache&)> ends);
  ~cache_registry() { close(); }
  /// Without the pool's lock: after this no call of `ends` is under way or begins.
  void close() noexcept;
  cache_registry& operator=(cache_registry&&) = delete;

  /// This thread's cache, or null. Any thread, no lock.
  [[nodiscard]] thread_cache* mine() const noexcept {
    const latest_cache& latest = tls_last_cache;
    return latest.pool_number == number_ ? latest.cache : look_up();
  }
  /// Under the pool's lock: the same, created if there is none; null in a thread that has begun to end.
  thread_cache* make_mine();
  void remove(thread_cache& cache) noexcept;

  [[nodiscard]] const std::vector<std::unique_ptr<thread_cache>>& all() const noexcept { return all_; }

  /// Stops every other thread's cache while the object lives: no thread is inside one. Requires the pool's lock.
  class stop_caches {
   public:
    explicit stop_caches(const cache_registry& caches);
    ~stop_caches();
    stop_caches& operator=(stop_caches&&) = delete;

   private:
    const cache_registry& caches_;
    const thread_cache* mine_;
  };

 private:
  [[nodiscard]] thread_cache* look_up() const noexcept;
  /// Makes `cache`, this thread's, the one that `tls_last_cache` names.
  void set_last_cache(thread_cache* cache) const noexcept;

  fast_path& fast_;
  cache_place place_;
  std::uint64_t number_;
  std::shared_ptr<open_pool> self_;
  std::vector<std::unique_ptr<thread_cache>> all_;
};

}  // namespace gpumem
