/// The allocator that a program gets without asking for anything: every visible GPU, settings from the environment.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// One allocator a process, over every GPU that the driver shows, opened by the first call with GPUMEM_*; later calls
/// return the same, or the same error. It lives until the process ends and is never destroyed, so that blocks may be
/// freed from static destructors. Any thread.
result<allocator*> default_allocator();

}  // namespace gpumem
