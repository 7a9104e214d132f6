/// Variables that name code to load. A program that runs with more rights than its user has (set-uid, file
/// capabilities) must not load what that user names.
#pragma once

#include <string>

namespace gpumem {

/// Whether the kernel started this program in secure-execution mode (AT_SECURE).
[[nodiscard]] bool runs_secure() noexcept;

/// The value of such a variable; empty where it is not set and, with a line logged once for each variable, where
/// `secure`.
[[nodiscard]] std::string trusted_path(const char* variable, bool secure = runs_secure());

}  // namespace gpumem
