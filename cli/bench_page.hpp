// Makes an HTML page with the program gpumem_bench.
#pragma once

#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// Replays a trace under policies on the simulated device and writes the page. `note` is a file with text for the page;
/// may be empty. An error message is only the reason.
status make_bench_page(const std::string& trace, const std::vector<std::string>& policies, const std::string& note,
                       const std::string& page);

}  // namespace gpumem::cli
