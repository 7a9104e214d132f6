/// A pair of fences of which one side costs nothing: between a thread that takes a path a billion times and another
/// that seldom has to know whether it is there.
///
/// Dekker's two flags need a store-load fence on both sides. With membarrier(2), the rare side has the kernel run that
/// fence on every processor where this process runs, and the frequent side keeps only the compiler from reordering
/// (Dice, Huang and Yang, "Asymmetric Dekker Synchronization", 2001). Any thread.
#pragma once

#include <atomic>

namespace gpumem {

/// Whether the kernel offers it; where not (and under ThreadSanitizer, which cannot follow it), both sides must use
/// sequentially consistent read-modify-writes. The first call registers the process; the answer never changes.
[[nodiscard]] bool asymmetric_fences() noexcept;

/// The frequent side.
inline void light_fence() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

/// The rare side: a few microseconds. Does nothing where `asymmetric_fences` is false.
void heavy_fence() noexcept;

}  // namespace gpumem
