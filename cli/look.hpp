// A snapshot of the cards and the served processes, for `gpumem top` and the exporter.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gpumem::cli {

/// The machine at one moment.
struct look {
  nlohmann::json devices;
  nlohmann::json served;
  std::string problem;  ///< why `devices` is empty
};

/// Queries NVML and every served process. May fork (unmeasured_cards.hpp), so it requires a single-threaded program.
look look_now();

/// The JSON of `top --json`, as cli/README.md describes it.
nlohmann::json look_as_json(const look& shown);

}  // namespace gpumem::cli
