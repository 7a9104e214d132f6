// Finds a command's file as a shell does, and checks whether the loader can preload a library into it.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

inline constexpr int not_found = 127;  // as in shells
inline constexpr int not_executable = 126;

struct command_file {
  std::string path;
  int exit_status = 0;     ///< `not_found` or `not_executable` if it cannot be run
  std::string why;         ///< the reason for the exit status
  std::string no_preload;  ///< why no library can be preloaded; empty if one can
};

[[nodiscard]] command_file find_command(const std::string& name);

}  // namespace gpumem::cli
