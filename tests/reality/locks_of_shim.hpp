/// How often the preloaded library has taken a mutex: the program's own pthread_mutex_lock comes before libc's.
#pragma once

#include <cstdint>

namespace gpumem::preload_test {

/// False under a sanitizer, which needs that name for itself.
bool counts_locks();
/// Of all threads so far, since the first call of this.
std::uint64_t locks_of_shim();

}  // namespace gpumem::preload_test
