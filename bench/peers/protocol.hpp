/// The figures of a pass as JSON, shared by the measuring process and the asking one.
#pragma once

#include <nlohmann/json.hpp>

#include "measure.hpp"

namespace gpumem::bench::peers {

using json = nlohmann::json;

json json_of(const compare_figures& figures);
json json_of(const fit_figures& figures);

/// These throw json::exception if a key is missing or has another type.
compare_figures compare_figures_of(const json& answer);
fit_figures fit_figures_of(const json& answer);
std::optional<double> number_of(const json& value);

}  // namespace gpumem::bench::peers
