// The processes that gpumem serves, as they report themselves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// One row per process: pid, command, whether it answered, and its pools. Only this user's processes; for root all.
nlohmann::json served_figures();

/// A table of at most 80 columns, with NVML's index of each pool's card.
std::string served_table(const nlohmann::json& served, const nlohmann::json& devices);

/// The index among `devices` of a pool's card; `-` if it is not listed.
std::string gpu_of(const nlohmann::json& pool, const nlohmann::json& devices);

/// Has a served process write a dump to a regular file. An error is one line that says what to do.
status dump_served(unsigned pid, std::string_view contents, int descriptor);

/// Asks a served process to return its idle memory; false if it does not answer.
bool trim_served(int pid);

}  // namespace gpumem::cli
