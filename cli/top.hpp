// `gpumem top`: cards and the processes that gpumem serves, refreshed.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

int show_top(const top_options& options);

}  // namespace gpumem::cli
