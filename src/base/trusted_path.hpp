/// Environment variables that name files, folders or libraries. A program with more rights than its user (set-uid, file
/// capabilities) must not load, read or write files that the user names.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/settings.hpp"

namespace gpumem {

/// Whether the kernel started this program in secure-execution mode (AT_SECURE).
[[nodiscard]] bool runs_secure() noexcept;

/// Whether the variable names a file, a folder or a library, by its form in options.def: GPUMEM_TRACE, GPUMEM_TRACE_1.
[[nodiscard]] bool names_path(std::string_view variable) noexcept;

/// Returns the variables that a program may obey: if `secure`, those that name no path. Logs each ignored one once.
[[nodiscard]] environment obeyed_variables(environment all, bool secure = runs_secure());

/// Returns the value of a variable that names a path. Empty if it is not set; if `secure`, also empty, and logged once.
[[nodiscard]] std::string trusted_path(const char* variable, bool secure = runs_secure());

}  // namespace gpumem
