// `gpumem top` on a terminal, by ncurses.
#pragma once

#include <functional>

#include "top_view.hpp"

namespace gpumem::cli {

/// Whether this build has ncurses and the terminal can be used.
bool screen_is_possible();

/// Draws a look every `interval_s` and obeys the keys until one says to quit. Requires `screen_is_possible`.
int run_screen(const std::function<look()>& look_now, double interval_s);

}  // namespace gpumem::cli
