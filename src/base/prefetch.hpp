// Asks for a line of memory ahead of a write.
#pragma once

namespace gpumem {

/// To be written soon: the processor fetches the line for itself alone, once, where a read and then a write would fetch
/// it twice from another processor that wrote it last. No effect but on time; any address.
inline void prefetch_to_write(const void* p) noexcept {
#if defined(__x86_64__)
  // `__builtin_prefetch(p, 1)` is a prefetch to read on the oldest of these, for which packages are built; there, this
  // instruction does nothing.
  asm volatile("prefetchw (%0)" : : "r"(p));
#else
  __builtin_prefetch(p, 1);
#endif
}

}  // namespace gpumem
