/// Varies a recorded program's batch, width, optimiser and parallelism: a window of its operations with scaled sizes.
#pragma once

#include <cstdint>

#include "random_numbers.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// Blocks that outlive the window count as weights and optimiser states, which scale with the square of the width; the
/// others as activations, which scale with the width and the batch. Blocks live at the window's beginning are allocated
/// first. With `data` parallelism some of the largest frees come from a second stream.
trace vary(const trace& recorded, std::uint64_t ops, random_numbers& random);

}  // namespace gpumem::bench
