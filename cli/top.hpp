// `gpumem top`: cards and the processes that gpumem serves, again and again.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

int show_top(const top_options& with);

}  // namespace gpumem::cli
