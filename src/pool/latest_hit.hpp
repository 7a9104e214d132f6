// Hits: the cache that the calling thread used last serves a request or takes a free, without the lock.
#pragma once

#include "block_cache.hpp"

namespace gpumem {

/// A block for `stream` from the thread's latest cache; 0 if that is not a cache of this allocator and device, or has
/// none.
inline address allocate_from_latest(std::uint64_t allocator_number, int device, stream_ref stream,
                                    std::uint64_t requested) noexcept {
  const latest_cache& latest = tls_last_cache;
  if (latest.device != device) [[unlikely]]
    return 0;
  if (latest.allocator == allocator_number) return latest.fast->allocate(*latest.cache, stream, requested);
  if (latest.allocator != (allocator_number | noted_hits)) return 0;
  return latest.fast->allocate_noted(*latest.cache, stream, requested);
}

/// True if the thread's latest cache, of any device of the allocator, took the block. `stated` may be null.
inline bool free_to_latest(std::uint64_t allocator_number, address pointer, const free_args* stated) noexcept {
  const latest_cache& latest = tls_last_cache;
  if (stated != nullptr && stated->device) [[unlikely]]
    return false;
  if (latest.allocator == allocator_number) return latest.fast->free(*latest.cache, pointer, stated);
  return latest.allocator == (allocator_number | noted_hits) && latest.fast->free_noted(*latest.cache, pointer, stated);
}

}  // namespace gpumem
