// First use under a policy that takes everything (`grab_all`): takes every device of the allocator, as TensorFlow does.
//
// An allocator does this at its first request. The preload library, which has one allocator per device, calls this for
// its other allocators.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Takes the memory of each pool of `memory` whose policy takes everything, unless the allocator has already allocated.
/// `memory` comes from `allocator::open`. Logs memory that cannot be taken. Any thread; the caller must not hold a lock
/// that an allocation takes.
void preallocate_pools(allocator& memory);

}  // namespace gpumem
