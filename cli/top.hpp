// `gpumem top`: shows the cards and the processes that gpumem serves, and refreshes them.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

int show_top(const top_options& options);

}  // namespace gpumem::cli
