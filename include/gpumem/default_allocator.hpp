/// The allocator that a program gets without asking for anything: visible GPUs, settings from the environment.
#pragma once

#include <memory>
#include <span>

#include "gpumem/allocator.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

/// One allocator a process, over every GPU that the driver shows, or those of them that GPUMEM_DEVICES chooses, opened
/// by the first call with GPUMEM_*; later calls return the same, or the same error. It lives until the process ends and
/// is never destroyed, so that blocks may be freed from static destructors. Any thread.
///
/// Opening it takes no memory of a GPU. Where the policy of some takes everything (`grab_all`), the first allocation,
/// on whichever device, takes it on all of them, as TensorFlow does; on one that cannot be taken from that is logged,
/// and its own first request tries again.
result<allocator*> default_allocator();

/// The same settings over devices of the program's own, which must outlive it: GPUMEM_*, with a line logged for each
/// that is unknown or bad (in strict mode the first is the error). GPUMEM_DEVICES has no say in it.
result<std::unique_ptr<allocator>> open_allocator(std::span<device* const> devices);

}  // namespace gpumem
