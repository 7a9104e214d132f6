/// The command line of gpumem_bench, parsed strictly: every error is one line and exit status 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"
#include "measure.hpp"

namespace gpumem::bench {

enum class command : std::uint8_t { compare, fit, costs, latency, claims };

struct options {
  command subcommand = command::compare;
  std::vector<std::string> traces;      ///< files and folders; empty: the bundled ones
  std::vector<std::string> workloads;   ///< texts for `make_workload`; if there are any, no bundled trace is used
  std::vector<std::string> policies;    ///< texts for `parse_policy_row`; empty: `default_rows`
  std::vector<std::string> baselines;   ///< cub, cuda_malloc, cuda_malloc_async, or a peer (peers/peer.hpp)
  std::string peers;                    ///< the folder with the peers' files
  std::vector<std::string> only;        ///< ids of claims; empty: all
  std::vector<std::string> frameworks;  ///< for claims: tensorflow, jax; empty: none
  std::string python = "python3";       ///< runs the frameworks
  std::string limit;                    ///< for rows without a limit; may be empty
  std::string json_path;                ///< `-`: standard output, to which nothing else is then written
  std::string csv_path;
  std::string html_path;
  std::string note_path;   ///< file with text for the page of `compare`; empty: none
  bool over_time = false;  ///< adds memory over time to the JSON
  bool quiet = false;      ///< no progress bar
  unsigned jobs = 1;
  std::vector<unsigned> threads;   ///< for latency; empty: 1 to 8
  std::vector<std::string> cases;  ///< for latency: prefixes of case names; empty: all
  replay_setup setup;
};

/// Returns a text to print (`--help`, `--version`), or nothing; `options` is then complete.
result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& options);

/// Parses `sim`, `sim:80GiB`, `cuda` or `cuda:1` into the setup. Opens a GPU to check that it exists.
status parse_device(std::string_view text, replay_setup& setup);
/// Parses `1ms`, `250us`, `2.5s`, `800ns` or `0`, at most 1000 s, to nanoseconds.
result<std::uint64_t> parse_lag(std::string_view text);
/// Parses `10%` or `10`, 0 to 100, to a share of 1.
result<double> parse_share(std::string_view text);

}  // namespace gpumem::bench
