// Runs the command under a keeper: a process between `gpumem run` and the command that keeps the leases until the last
// descendant of the command has ended, whatever descriptors they close.
#pragma once

#include <string>
#include <vector>

#include "claim_table.hpp"
#include "supervise.hpp"

namespace gpumem::cli {

/// As `run_child`; returns when the command ends. The keeper has the terminal's process group and none of this
/// process's files.
ended run_kept(const std::string& path, const std::vector<std::string>& words, held_claims& claims);

}  // namespace gpumem::cli
