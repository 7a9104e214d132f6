// Every card of the machine as `devices` and `top` show it: as JSON, which the tables are made from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// A row a card, in NVML's order. `unsupported` where there is no NVML. (Not a `result`: a json made from one in braces
/// is an array around it.)
status device_figures(nlohmann::json& into);

/// Whether the driver itself can hold a process to a limit: an MPS control daemon, where its clients look for one.
nlohmann::json mps_figures();

/// Who runs under a pid, as far as this user may know.
std::string command_of(unsigned pid);

/// Columns two spaces apart, right-aligned but where the heading, in the first row, begins with '<'. No row is longer.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// The cards as text.
std::string device_table(const nlohmann::json& devices);

}  // namespace gpumem::cli
