// A look at the machine in Prometheus's text format 0.0.4.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// `shown` is what `top --json` prints. `unsupported` in a build without prometheus-cpp.
result<std::string> prometheus_text(const nlohmann::json& shown);

}  // namespace gpumem::cli
