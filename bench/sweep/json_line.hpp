/// JSON as one line of a file of the sweep.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpumem::bench::sweep {

/// Bytes that are no UTF-8 are replaced, so that every reader takes the line.
inline std::string json_line(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace gpumem::bench::sweep
