// A question to the driver, asked in a process of its own, so that this one gets neither the driver's descriptors nor
// its threads.
#pragma once

#include <functional>
#include <string>

namespace gpumem {

/// Calls `tell` in a forked child and returns its text; empty if the child fails.
[[nodiscard]] std::string child_answer(const std::function<std::string()>& tell);

}  // namespace gpumem
