// Queries the processes that gpumem serves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// One row per process of this user, or of every user for root: pid, command, whether it answered, and its pools.
nlohmann::json served_figures();

/// A table of at most 80 columns, with NVML's index of each pool's card.
std::string served_table(const nlohmann::json& served, const nlohmann::json& devices);

/// NVML's index of a pool's card; `-` if `devices` does not list the card.
std::string gpu_of(const nlohmann::json& pool, const nlohmann::json& devices);

/// Makes a served process write a dump to a regular file. An error message is one line that says what to do.
status dump_served(unsigned pid, std::string_view contents, int descriptor);

/// Asks a served process to return its idle memory; false if it does not answer.
bool trim_served(int pid);

}  // namespace gpumem::cli
