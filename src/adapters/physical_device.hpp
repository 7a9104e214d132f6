// Maps a GPU, as frameworks and the driver count them, to a logical device, as gpumem's requests name them.
#pragma once

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Returns the first logical device on a GPU; `wrong_device` if it has none.
result<int> first_logical_on(const allocator& allocator, int physical);

}  // namespace gpumem
