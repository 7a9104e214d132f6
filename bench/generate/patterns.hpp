/// Allocation patterns of programs whose request sizes change, each from a public report or typical of a kind of
/// program.
#pragma once

#include <cstdint>

#include "random_numbers.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// Draws one of the patterns and its sizes, and adds whole rounds until `ops` operations are reached. The trace's name
/// begins with the pattern's.
trace draw_pattern(std::uint64_t ops, random_numbers& random);

}  // namespace gpumem::bench
