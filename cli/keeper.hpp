// Runs the command under a keeper: a process between `gpumem run` and the command. It holds the leases until the last
// descendant of the command has ended, even if descendants close inherited descriptors.
#pragma once

#include <string>
#include <vector>

#include "claim_table.hpp"
#include "supervise.hpp"

namespace gpumem::cli {

/// Like `run_child`; returns when the command ends. The keeper stays in the terminal's process group and closes this
/// process's files.
ended run_kept(const std::string& path, const std::vector<std::string>& words, held_claims& claims);

}  // namespace gpumem::cli
