// Replaces a file as a whole, so that no reader sees a part of it.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// Writes a temporary file beside `path` and renames it. Its name does not end as that of `path`, so that a reader of
/// `*.prom` does not see it, and its mode is that of any new file. `bad_setting` with `option` if that fails; then
/// `path` is unchanged.
status replace_file(const std::string& path, const char* option, std::string_view text);

}  // namespace gpumem::cli
