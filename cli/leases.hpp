// `gpumem lease`: lists the leases on cards with their holders, and ends one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "options.hpp"

namespace gpumem::cli {

/// A row a lease: `uuid` of the card without its prefix, `place`, `room_bytes` that its program was promised (null
/// where not known), and `holders`, the processes that this user may see: `pid`, `user`, `command`. By card and place.
/// `place` is null for a program that was promised room of a card it named.
nlohmann::json leases_now();

/// Exit status: 0; 1 where the process cannot be ended; 2 where it holds no lease.
int show_leases(const lease_options& with);

}  // namespace gpumem::cli
