/// Environment variables that name code to load. A program with more rights than its user (set-uid, file capabilities)
/// must not load code that the user names.
#pragma once

#include <string>

namespace gpumem {

/// Whether the kernel started this program in secure-execution mode (AT_SECURE).
[[nodiscard]] bool runs_secure() noexcept;

/// The value of such a variable; empty if it is not set, or if `secure`, which logs a line once per variable.
[[nodiscard]] std::string trusted_path(const char* variable, bool secure = runs_secure());

}  // namespace gpumem
