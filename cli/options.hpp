// The command line of `gpumem`, taken apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "advise.hpp"
#include "gpumem/status.hpp"
#include "plan.hpp"

namespace gpumem::cli {

struct run_options {
  /// Options of the table in src/base/options.def by name in small letters, as given.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> command;
};

struct devices_options {
  bool json = false;
};

struct top_options {
  double interval_s = 1;
  bool once = false;
  bool json = false;
};

enum class command : std::uint8_t { run, devices, top, plan, advise };

struct options {
  command what = command::devices;
  run_options run;
  devices_options devices;
  top_options top;
  plan_options plan;
  advise_options advise;
};

/// A text where one was asked for (help, version) instead of a command; `bad_setting` is one line for status 2.
result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& into);

}  // namespace gpumem::cli
