/// Checks a placement, sharing no code with the solvers: a sweep over time with the live buffers in order of their
/// offsets.
#pragma once

#include <cstdint>

#include "problem.hpp"

namespace gpumem::plan {

/// Ok if every buffer is aligned, ends within `capacity`, and shares no byte with another buffer that is alive at the
/// same time; otherwise `corrupt` names the buffers. O(n log n).
[[nodiscard]] status validate(const problem& buffers, const placement& offsets, std::uint64_t capacity = UINT64_MAX);

}  // namespace gpumem::plan
