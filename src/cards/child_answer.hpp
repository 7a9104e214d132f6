// Queries the driver in a child process, so that this process gets neither the driver's descriptors nor its threads.
#pragma once

#include <functional>
#include <string>

namespace gpumem {

/// Calls `tell` in a forked child and returns its text; empty if the child fails.
[[nodiscard]] std::string child_answer(const std::function<std::string()>& tell);

}  // namespace gpumem
