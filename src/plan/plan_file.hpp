/// The file format of plans: text lines with a version, a fingerprint of the planned requests, and a checksum.
///
///   gpumem plan 1
///   granule 512
///   fingerprint <16 hex digits>          of sizes, streams and repeat_from
///   repeat_from <index of an allocation>
///   height <bytes>
///   peak <bytes>
///   lower_bound <bytes>
///   allocations <count>
///   <bytes> <offset> <stream>            one line for each, in order
///   checksum <16 hex digits>             of every byte before this line
#pragma once

#include <string>
#include <string_view>

#include "step.hpp"

namespace gpumem::plan {

[[nodiscard]] std::string plan_text(const step_plan& made);

/// `corrupt` names the damage; `unsupported` names another version or granule.
[[nodiscard]] result<step_plan> parse_plan(std::string_view text);

/// The same for a file; messages begin with its name.
[[nodiscard]] result<step_plan> read_plan(const std::string& path);

/// Writes a temporary file and renames it, so that readers see the complete new file or the old one.
[[nodiscard]] status write_plan(const std::string& path, const step_plan& made);

/// `invalid_argument` if the plan is for another sequence of requests than this recording's step.
[[nodiscard]] status is_plan_of(const step_plan& made, const std::vector<recorded_op>& recorded);

}  // namespace gpumem::plan
