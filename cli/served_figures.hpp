// The processes that gpumem serves, as they answer for themselves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpumem::cli {

/// A row a process: pid, command, whether it answered, and its pools. One's own; for root those of every user.
nlohmann::json served_figures();

/// At most 80 columns wide, with each pool's card as NVML counts it.
std::string served_table(const nlohmann::json& served, const nlohmann::json& devices);

/// The index among `devices` of the card that a pool lies on; `-` where it is none of them.
std::string gpu_of(const nlohmann::json& pool, const nlohmann::json& devices);

/// Asks a served process to give its idle memory back; false where it does not answer.
bool trim_served(int pid);

}  // namespace gpumem::cli
