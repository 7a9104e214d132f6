// The page of gpumem_bench, which is a program of its own.
#pragma once

#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// Replays a trace under policies on the simulated device and writes the page. `note` is a file whose text the page
/// shows; may be empty. An error is the reason alone.
status make_bench_page(const std::string& trace, const std::vector<std::string>& policies, const std::string& note,
                       const std::string& page);

}  // namespace gpumem::cli
