/// Recordings of programs that ran out of memory, for `gpumem why` and `gpumem advise`.
#pragma once

#include <cstdint>

#include "random_numbers.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// A program with many blocks on twelve streams. Two fifths of its operations allocate blocks; the others replace them.
/// The recording says that the default policy refused the last request, within up to a third more memory than the live
/// blocks and the request take; a replay may serve it.
trace draw_refused(std::uint64_t ops, random_numbers& random);

}  // namespace gpumem::bench
