/// The default allocator: all visible GPUs, with settings from the environment.
#pragma once

#include <memory>
#include <span>

#include "gpumem/allocator.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

/// The process's allocator, over every GPU that the driver shows, or those that GPUMEM_DEVICES chooses. The first call
/// opens it with the settings of GPUMEM_*; later calls return the same allocator, or the same error. It is never
/// destroyed, so that static destructors may free blocks. Any thread.
///
/// Opening it takes no GPU memory. Under `grab_all` the first allocation, on any device, takes all devices with this
/// policy, as TensorFlow does. A device that cannot be taken is logged, and its own first request tries again.
result<allocator*> default_allocator();

/// Opens an allocator with the settings of GPUMEM_* over the program's own devices, which must outlive it. Ignores
/// GPUMEM_DEVICES. Logs a line for each unknown or bad variable; in strict mode the first one is the error.
result<std::unique_ptr<allocator>> open_allocator(std::span<device* const> devices);

}  // namespace gpumem
