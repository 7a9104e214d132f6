// What `gpumem top` is told by a process that gpumem serves.
#pragma once

#include <span>
#include <string>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// One line of JSON: the process, and a row for each logical device of `of`.
[[nodiscard]] std::string published_figures(const allocator& of, std::span<device* const> devices,
                                            const settings& with);

/// Answers with them until the process ends, in the shared folder, where GPUMEM_PUBLISH allows it. Neither is ever
/// destroyed: `of` and `devices` must outlive every other thread.
void publish_until_exit(const allocator& of, std::span<device* const> devices, const settings& with);

}  // namespace gpumem
