// `gpumem lease`: lists the leases on cards with their holders, and ends one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "gpumem/status.hpp"
#include "options.hpp"

namespace gpumem::cli {

/// One row per lease, by card and place: `uuid` of the card without prefix, `place` (null for a program with a claim on
/// a named card), `room_bytes` promised to the program (null if unknown), `waiting` if it still waits for the room, and
/// `holders`, the program's processes in this PID namespace: `pid`, `user`, `command`.
status leases_now(nlohmann::json& leases);

/// Exit status: 0; 1 if the process cannot be ended; 2 if it holds no lease, or the table cannot be trusted.
int show_leases(const lease_options& options);

}  // namespace gpumem::cli
