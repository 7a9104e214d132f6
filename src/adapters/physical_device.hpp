// Frameworks count GPUs as the driver does; gpumem's requests name logical devices.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// The first logical device on a GPU; `wrong_device` where it has none.
result<int> first_logical_on(const allocator& allocator, int physical);

}  // namespace gpumem
