// The processes that gpumem serves, as they answer for themselves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpumem::cli {

/// A row a process: pid, command, whether it answered, and its pools. One's own; for root those of every user.
nlohmann::json served_figures();

std::string served_table(const nlohmann::json& served);

}  // namespace gpumem::cli
