// The parsed command line of `gpumem`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "advise.hpp"
#include "convert.hpp"
#include "dump.hpp"
#include "exporter.hpp"
#include "fit.hpp"
#include "gpumem/status.hpp"
#include "plan.hpp"
#include "predict.hpp"
#include "simulate.hpp"
#include "why.hpp"

namespace gpumem::cli {

/// Parses an option's `30`, `30s`, `10m` or `2h` into seconds.
status read_time(const std::string& text, const char* option, double& seconds);

struct run_options {
  /// The given options of src/base/options.def: name in small letters, and value.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> command;
  bool limit_each = false;       ///< the limit applies to each process instead of all together
  std::optional<double> wait_s;  ///< longest wait for a card with room; infinite: no limit
};

struct devices_options {
  bool json = false;
};

struct top_options {
  double interval_s = 1;
  bool once = false;
  bool json = false;
  bool prometheus = false;
  std::string output;  ///< the file of `prometheus`; empty: standard output
};

struct lease_options {
  bool json = false;
  int end = 0;  ///< pid of the process to end; 0: none
};

struct options {
  std::string subcommand;  ///< its name
  run_options run;
  devices_options devices;
  top_options top;
  lease_options lease;
  plan_options plan;
  advise_options advise;
  simulate_options simulate;
  predict_options predict;
  fit_options fit;
  convert_options convert;
  why_options why;
  dump_options dump;
  exporter_options exporter;
};

/// Returns the text to print for --help or --version. `bad_setting` has a line to print; the exit status is then 2.
result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& options);

}  // namespace gpumem::cli
