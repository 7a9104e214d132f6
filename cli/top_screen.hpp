// `gpumem top` on a terminal, by ncurses.
#pragma once

#include <functional>

#include "top_view.hpp"

namespace gpumem::cli {

/// Whether this build has ncurses and the terminal is usable.
bool screen_is_possible();

/// Draws the screen every `interval_s` and handles keys until quit. Requires `screen_is_possible`.
int run_screen(const std::function<look()>& look_now, double interval_s);

}  // namespace gpumem::cli
