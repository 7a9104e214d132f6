/// A pair of store-load fences: free on the frequent side, expensive on the rare side.
///
/// Dekker's algorithm needs a store-load fence on both sides. With membarrier(2) the rare side has the kernel run the
/// fence on every processor that runs this process, so the frequent side needs only a compiler barrier (Dice, Huang and
/// Yang, "Asymmetric Dekker Synchronization", 2001). Any thread.
#pragma once

#include <atomic>

namespace gpumem {

/// Whether the kernel has membarrier(2). If not, and under ThreadSanitizer, which cannot model it, both sides must use
/// sequentially consistent read-modify-writes. The first call registers the process; the answer never changes.
[[nodiscard]] bool asymmetric_fences() noexcept;

/// The frequent side.
inline void light_fence() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }

/// The rare side: takes a few microseconds. Does nothing if `asymmetric_fences` is false.
void heavy_fence() noexcept;

}  // namespace gpumem
