/// A recorded program with another batch, width, optimiser and parallelism: a window of its operations with other
/// sizes.
#pragma once

#include <cstdint>

#include "random_numbers.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// Blocks that outlive the window count as weights and optimiser states, the others as activations: they grow with the
/// batch, the first with the square of the width. What is live where the window begins is allocated first. With `data`
/// parallelism some of the largest frees come from a second stream.
trace vary(const trace& recorded, std::uint64_t ops, random_numbers& random);

}  // namespace gpumem::bench
