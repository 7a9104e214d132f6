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

/// `30`, `30s`, `10m`, `2h` of an option, in seconds.
status read_time(const std::string& text, const char* option, double& seconds);

struct run_options {
  /// Options of the table in src/base/options.def as given, by name in small letters.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> command;
  bool limit_each = false;       ///< the limit is on each process, and not on all of them together
  std::optional<double> wait_s;  ///< the longest wait for a card with room; infinite: no limit
};

struct devices_options {
  bool json = false;
};

struct top_options {
  double interval_s = 1;
  bool once = false;
  bool json = false;
  bool prometheus = false;
  std::string output;  ///< of `prometheus`; empty: standard output
};

struct lease_options {
  bool json = false;
  int end = 0;  ///< a pid; 0: none
};

enum class command : std::uint8_t {
  run,
  devices,
  top,
  lease,
  plan,
  advise,
  simulate,
  predict,
  fit,
  convert,
  why,
  dump,
  exporter
};

struct options {
  command subcommand = command::devices;
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

/// Returns a text for help or version; `bad_setting` is one line for status 2.
result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& options);

}  // namespace gpumem::cli
