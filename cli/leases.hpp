// `gpumem lease`: lists the leases on cards with their holders, and ends one.
#pragma once

#include <nlohmann/json.hpp>

#include "gpumem/status.hpp"
#include "options.hpp"

namespace gpumem::cli {

/// Fills `leases` with one row per lease, sorted by card and place. Keys: `uuid` of the card without prefix; `place`,
/// null for a claim on a named card; `room_bytes` promised to the program, null if unknown; `waiting`, whether the
/// program still waits for them; `holders`, its processes in this PID namespace with `pid`, `user`, `command`.
status leases_now(nlohmann::json& leases);

/// Exit status: 0; 1 if the process cannot be ended; 2 if it holds no lease, or the table cannot be trusted.
int show_leases(const lease_options& options);

}  // namespace gpumem::cli
