// Every card of the machine as `devices` and `top` show it: as JSON, which the tables are made from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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

/// Whose process it is, by name where there is one; empty where it is not there.
std::string user_of(unsigned pid);

/// `2.0/24.0 GiB`, `60/300 W`, `70 %`; `-` for what NVML does not tell.
std::string memory_text(const nlohmann::json& used, const nlohmann::json& total);
std::string power_text(const nlohmann::json& card);
std::string with_unit(const nlohmann::json& number, std::string_view unit);

/// Columns two spaces apart, right-aligned but where the heading, in the first row, begins with '<'. No row is longer.
std::string table(const std::vector<std::vector<std::string>>& rows);

/// The cards as text.
std::string device_table(const nlohmann::json& devices);

}  // namespace gpumem::cli
