// What the run's record (run_record.hpp) has beside the driver's own events: requests for memory that never reached the
// card, and which card each ordinal is. The world's lock must be held.
#pragma once

#include <cstdint>
#include <string_view>

namespace gpumem::simcuda {

struct gpu;

/// At cuInit, after `open_report`.
void note_card_numbers();
/// An allocator in front of the driver refused `bytes` that the program requested of `function`, because of `why`.
void note_refused_before(const gpu& on, std::string_view function, std::uint64_t bytes, std::string_view why);
/// The program requested memory by a function that the doubles do not have.
void note_unsupported(std::string_view function);

}  // namespace gpumem::simcuda
