/// The allocator that a program gets without asking for anything: visible GPUs, settings from the environment.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// One allocator a process, over every GPU that the driver shows, or those of them that GPUMEM_DEVICES chooses, opened
/// by the first call with GPUMEM_*; later calls return the same, or the same error. It lives until the process ends and
/// is never destroyed, so that blocks may be freed from static destructors. Any thread.
result<allocator*> default_allocator();

}  // namespace gpumem
