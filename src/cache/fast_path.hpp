// Allocations and frees of one pool without its lock: hits in the calling thread's cache.
//
// If a hit cannot be decided, nothing changes, and the caller takes the lock. cache_allocate.cpp has the memory order
// of each atomic, and why; cache_free.cpp has the frees.
#pragma once

#include <cstdint>
#include <optional>

#include "cache_registry.hpp"
#include "event_history.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"
#include "pointer_map.hpp"

namespace gpumem {

/// On its own cache lines, so that misses do not invalidate what hits read.
class alignas(64) fast_path {
 public:
  /// `without_lock`: false if an observer needs every free in order. With a `history`, hits go through the functions
  /// that note them. Keeps references to all of them.
  fast_path(const device& device, const cache_registry& caches, event_history* history, bool without_lock)
      : device_{device},
        caches_{caches},
        history_{history},
        without_lock_{without_lock && history == nullptr},
        notes_hits_{without_lock && history != nullptr} {}
  fast_path& operator=(fast_path&&) = delete;

  /// A block of `requested`, rounded up to 512; 0 if `mine` (this thread's) has none or last served another stream.
  /// `requested` may be anything. Takes no lock, makes no call.
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
  /// `allocate` and `free` if the pool keeps a history: they also record the event, and fail if this thread's chunk is
  /// full.
  [[nodiscard]] address allocate_noted(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_noted(thread_cache& mine, address pointer, const free_args* stated) noexcept;
  /// Attaches the fence that was due. False if the arena has the blocks already, or this thread may not use its cache
  /// now; the caller then still owns the fence.
  [[nodiscard]] bool attach_fence(fence batch_fence) noexcept;

  /// Takes a block from a bin of this thread's cache, which must hold one, and hands it to the program.
  address pop(thread_cache& mine, stream_cache::bin& bin, std::uint64_t requested) noexcept;
  [[nodiscard]] pointer_map& pointers() noexcept { return pointers_; }
  [[nodiscard]] const pointer_map& pointers() const noexcept { return pointers_; }

 private:
  [[nodiscard]] thread_cache* mine_without_lock() const noexcept { return without_lock_ ? caches_.mine() : nullptr; }
  /// This thread's cache if hits are noted; null otherwise, and before the thread has one.
  [[nodiscard]] thread_cache* mine_noted() const noexcept { return notes_hits_ ? caches_.mine() : nullptr; }
  [[nodiscard]] address allocate_by_key_noted(std::uint64_t key, std::uint64_t requested,
                                              std::optional<stream_ref> remember) noexcept;
  /// Which stream the block of a free must belong to.
  enum class match : std::uint8_t {
    any,            ///< any stream's
    key,            ///< the stream with a given key
    latest_handle,  ///< the stream that `free_args` names, if this thread used it last
    any_handle,     ///< the stream that `free_args` names
  };
  [[nodiscard]] bool free_noted(thread_cache& mine, address pointer, const free_args* stated, match how,
                                std::uint64_t key) noexcept;
  [[nodiscard]] address try_stream(thread_cache& mine, stream_cache& stream, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_to_stream(thread_cache& mine, address pointer, const free_args* stated,
                                    const stream_cache* only, bool by_handle) noexcept;

  const device& device_;
  pointer_map pointers_;
  const cache_registry& caches_;
  event_history* const history_;
  const bool without_lock_;  // and no history
  const bool notes_hits_;
};

}  // namespace gpumem
