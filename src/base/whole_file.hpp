/// Reads and replaces whole files.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem {

/// The content of a file. `invalid_argument` with the reason, without the path, if it cannot be read.
result<std::string> read_file(const std::string& path);

/// The content of a file; empty if it cannot be read.
std::string content_of(const std::string& path);

/// Replaces a file atomically: `write` fills a temporary file beside `path`, which is then renamed. The temporary name
/// has another ending, so that a reader of `*.prom` does not see it. Returns 0, or the error number; then `path` is
/// unchanged.
[[nodiscard]] int write_and_rename(const std::string& path, const std::function<bool(std::FILE*)>& write);
[[nodiscard]] int write_and_rename(const std::string& path, std::string_view text);

/// Whether all of the text was written.
bool write_text(std::FILE* file, std::string_view text);

}  // namespace gpumem
