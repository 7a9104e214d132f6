// The error line of a command, and its exit status.
#pragma once

#include <string_view>

#include "job_rank.hpp"
#include "print_error.hpp"
#include "text.hpp"

namespace gpumem::cli {

/// Prints `gpumem: WHY` to stderr, with the rank in a job, and returns the exit status.
inline int fail(int exit_status, std::string_view why) {
  print_error("gpumem: {}{}\n", rank_prefix(), printable(why, 8192));
  return exit_status;
}

}  // namespace gpumem::cli
