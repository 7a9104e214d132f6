// The cards of the machine for `devices` and `top`, as JSON and as tables made from it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// One row per card, in NVML's order. `unsupported` without NVML. (Not a `result`: json in braces would make an array
/// around it.)
status device_figures(nlohmann::json& figures);

/// Whether the driver itself can limit processes, which needs an MPS control daemon in the folder that clients use.
nlohmann::json mps_figures();

/// The user of a process, by name if possible; empty if the process does not exist.
std::string user_of(unsigned pid);

/// `2.0/24.0 GiB`, `60/300 W`, `70 %`; `-` for figures that NVML does not report.
std::string memory_text(const nlohmann::json& used, const nlohmann::json& total);
std::string power_text(const nlohmann::json& card);
std::string with_unit(const nlohmann::json& number, std::string_view unit);

/// Formats columns two spaces apart, right-aligned unless the heading in the first row begins with '<'.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// The cards as text.
std::string device_table(const nlohmann::json& devices);

}  // namespace gpumem::cli
