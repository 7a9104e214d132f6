/// Counts the mutex locks of the preloaded library. The program defines pthread_mutex_lock, which precedes libc's.
#pragma once

#include <cstdint>

namespace gpumem::preload_test {

/// False under a sanitizer, which needs that name for itself.
bool counts_locks();
/// The number of locks by all threads since the first call of this function.
std::uint64_t locks_of_shim();

}  // namespace gpumem::preload_test
