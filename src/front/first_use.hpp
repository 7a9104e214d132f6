// First use under a policy that takes everything (`grab_all`): it takes every device of the allocator, as TensorFlow
// does.
//
// An allocator sees to that at its first request. Who serves a process with several allocators, one for each device,
// tells the others by this.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Each pool of `of`, which `allocator::open` made, whose policy takes everything does so now, if nothing has been
/// allocated from the allocator yet. What cannot be taken is logged. Any thread; no lock may be held that an allocation
/// takes.
void take_ahead_of_use(allocator& of);

}  // namespace gpumem
