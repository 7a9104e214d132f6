// Replaces a file atomically.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// Writes a temporary file beside `path` and renames it. The temporary name has another ending, so that a reader of
/// `*.prom` does not see it; the file has the mode of any new file. On failure returns `bad_setting` that names
/// `option`, and leaves `path` unchanged.
status replace_file(const std::string& path, const char* option, std::string_view text);

}  // namespace gpumem::cli
