// Captures on streams that the caller cannot name, because they are other threads' default streams.
#pragma once

#include <cstdint>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// Until `end_held_capture` with the same number, the pools of `memory`, which `allocator::open` made, make no call
/// that would invalidate a capture. What is allocated meanwhile belongs to no graph.
status hold_capture(allocator& memory, std::uint64_t number);
/// Does nothing where no capture of that number is held.
void end_held_capture(allocator& memory, std::uint64_t number) noexcept;

}  // namespace gpumem
