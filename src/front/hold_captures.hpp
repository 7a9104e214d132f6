// Captures on streams that the caller cannot name, because they are other threads' default streams.
#pragma once

#include <cstdint>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Until `end_held_capture` with the same number, the pools of `memory` make no call that would invalidate a capture.
/// Blocks allocated in the meantime belong to no graph. `memory` must come from `allocator::open`.
status hold_capture(allocator& memory, std::uint64_t number);
/// Does nothing if no capture with that number is held.
void end_held_capture(allocator& memory, std::uint64_t number) noexcept;

}  // namespace gpumem
