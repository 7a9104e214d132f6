/// Reports refused requests to a library in place of the CUDA driver.
#pragma once

#include "gpumem/export.h"
#include "gpumem/statistics.hpp"

namespace GPUMEM_API gpumem {

/// Calls the driver's gpumem_refusal_callback (gpumem/gpumem.h), if it has one. Does nothing if the driver itself
/// refused the request, because the driver then knows of it. `function` names the program's call, `physical_device` is
/// the driver's ordinal. For adapters that turn a refusal into a framework's error. Any thread.
void report_refusal(const oom_report& refused, int physical_device, const char* function);

}  // namespace gpumem
