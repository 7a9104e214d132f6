// The figures of a process for `gpumem top`.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpumem/allocator.hpp"

namespace gpumem {

class pooled_allocator;

/// One line of JSON: the process, and a row per logical device of each allocator, numbered consecutively.
[[nodiscard]] std::string published_figures(std::span<const allocator* const> allocators, const settings& options);

/// Serves the figures on a socket in the shared folder until the process ends, if GPUMEM_PUBLISH allows it. A separate
/// thread calls `allocators` for each query, and trims them on request. The allocators must outlive every other thread.
void publish_until_exit(std::function<std::vector<pooled_allocator*>()> allocators, const settings& options);

}  // namespace gpumem
