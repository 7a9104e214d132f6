// Frees ordered behind all work of the device, for replacements of cudaFree.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Makes the stream `all` represent all work on the devices of `memory`: a fence on it is an event on the whole
/// context. A block freed on `all` is reusable when all work enqueued before its fence is done. Each thread records a
/// fence per 16 such frees, or sooner, per 1 MiB. Call once, before the first allocation. `memory` must come from
/// `allocator::open`.
status stand_for_all_work(allocator& memory, stream_ref all);

/// Frees a block behind all work, without a lock. On false nothing has changed, and the caller must call
/// `try_deallocate` with the stream `all`: the block is not from `memory`, the thread has no cache, the block needs the
/// lock, or streams are not announced (GPUMEM_STREAM_IDS=query). Any thread.
[[nodiscard]] bool free_behind_all_work(allocator& memory, void* pointer) noexcept;

}  // namespace gpumem
