/// A plan as a file: lines of text with a version, a fingerprint of what it was made for, and a checksum.
///
///   gpumem plan 1
///   granule 512
///   fingerprint <16 hex digits>          over sizes, streams and where it repeats
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

/// `corrupt` says what is damaged; `unsupported` that another version or granule wrote it.
[[nodiscard]] result<step_plan> parse_plan(std::string_view text);

/// The same of a file, whose name stands before the reason.
[[nodiscard]] result<step_plan> read_plan(const std::string& path);

/// Written beside the place and then renamed, so that a reader sees all of it or the file before.
[[nodiscard]] status write_plan(const std::string& path, const step_plan& made);

/// `invalid_argument` where the plan was made for another sequence of requests than this recording's step.
[[nodiscard]] status is_plan_of(const step_plan& made, const std::vector<recorded_op>& recorded);

}  // namespace gpumem::plan
