/// Is a placement right? An answer that shares no code with the solvers: a sweep over time with the live buffers in
/// order of their offsets.
#pragma once

#include <cstdint>

#include "problem.hpp"

namespace gpumem::plan {

/// Ok where every buffer has an offset that is aligned, ends at or below `capacity`, and shares no byte with another
/// that is alive at the same time; otherwise `corrupt` names the buffers. O(n log n).
[[nodiscard]] status validate(const problem& buffers, const placement& offsets, std::uint64_t capacity = UINT64_MAX);

}  // namespace gpumem::plan
