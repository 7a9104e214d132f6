/// Environment variables that name files, folders or libraries. A program with more rights than its user (set-uid, file
/// capabilities) must not load, read or write files that the user names.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/settings.hpp"

namespace gpumem {

/// Whether the kernel started this program in secure-execution mode (AT_SECURE).
[[nodiscard]] bool runs_secure() noexcept;

/// Whether the variable names a file, a folder or a library: GPUMEM_TRACE, GPUMEM_TRACE_1. By options.def.
[[nodiscard]] bool names_path(std::string_view variable) noexcept;

/// The variables that a program may obey: if `secure`, without those that name a path. Logs each of these once.
[[nodiscard]] environment obeyed_variables(environment all, bool secure = runs_secure());

/// The value of such a variable; empty if it is not set, or if `secure`, which logs a line once per variable.
[[nodiscard]] std::string trusted_path(const char* variable, bool secure = runs_secure());

}  // namespace gpumem
