// What the run's record (run_record.hpp) has beside the driver's own events: which card each ordinal is. The world's lock must be held.
#pragma once

namespace gpumem::simcuda {

/// At cuInit, after `open_report`.
void note_card_numbers();

}  // namespace gpumem::simcuda
