// Frees in the order of everything that the device was given, for who stands in the place of cudaFree.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// `all`, a stream of the caller's, stands for everything that the devices of `memory` are given, which
/// `allocator::open` made: a fence behind it is an event on the whole context. What is freed in its order is handed out
/// again when all of that is done which was enqueued when a fence was recorded: behind each 16th such free of a thread,
/// or the one that makes them 32 MiB. Once, before the first allocation.
status stand_for_all_work(allocator& memory, stream_ref all);

/// A free in that order without a lock: true where it is done. False where nothing changed and `try_deallocate`, with
/// that stream, is to be asked: the block is not of `memory`, the calling thread has no cache, something about the
/// block needs the lock, or streams and captures are not told of (GPUMEM_STREAM_IDS=query). Any thread.
[[nodiscard]] bool free_behind_all_work(allocator& memory, void* pointer) noexcept;

}  // namespace gpumem
