// What `gpumem top` is told by a process that gpumem serves.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// One line of JSON: the process, and a row for each logical device of each allocator, numbered through.
[[nodiscard]] std::string published_figures(std::span<const allocator* const> of, const settings& with);

/// Answers with them until the process ends, in the shared folder, where GPUMEM_PUBLISH allows it. `allocators` is
/// asked each time, from a thread of its own, which also trims them when somebody asks for that; what it names must
/// outlive every other thread.
void publish_until_exit(std::function<std::vector<allocator*>()> allocators, const settings& with);

}  // namespace gpumem
