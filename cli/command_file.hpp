// The file behind a command's name, found as a shell finds it, and whether the loader will preload anything into it.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

inline constexpr int not_found = 127;  // as shells say it
inline constexpr int not_executable = 126;

struct command_file {
  std::string path;
  int exit_status = 0;     ///< `not_found` or `not_executable` where it cannot be run
  std::string why;         ///< then
  std::string no_preload;  ///< why the loader preloads nothing into it; empty: it does
};

[[nodiscard]] command_file find_command(const std::string& name);

}  // namespace gpumem::cli
