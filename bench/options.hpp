/// The command line of gpumem_bench, parsed strictly: an error is one line and exit status 2.
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
  command what = command::compare;
  std::vector<std::string> traces;      ///< files and folders; empty: the bundled ones
  std::vector<std::string> workloads;   ///< as `make_workload` reads them; with some, no bundled traces
  std::vector<std::string> policies;    ///< as `parse_policy_row` reads them; empty: `default_rows`
  std::vector<std::string> baselines;   ///< cub, cuda_malloc, cuda_malloc_async, or a peer (peers/peer.hpp)
  std::string peers;                    ///< the folder with their files
  std::vector<std::string> only;        ///< of claims; empty: all
  std::vector<std::string> frameworks;  ///< of claims: tensorflow, jax; empty: none
  std::string python = "python3";       ///< that runs them
  std::string limit;                    ///< of rows that name none; may be empty
  std::string json_path;                ///< `-`: standard output and nothing else there
  std::string csv_path;
  std::string html_path;
  bool over_time = false;  ///< JSON has memory over time, too
  bool quiet = false;      ///< no progress bar
  unsigned jobs = 1;
  std::vector<unsigned> threads;   ///< of latency; empty: 1 to 8
  std::vector<std::string> cases;  ///< of latency: how the names of those wanted begin; empty: all
  replay_setup setup;
};

/// `into` is complete when nothing is returned; a text is to be printed as it is (`--help`, `--version`).
result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& into);

/// `sim`, `sim:80GiB`, `cuda` or `cuda:1`: what it is of the setup. A GPU is looked for at once.
status parse_device(std::string_view text, replay_setup& into);
/// `1ms`, `250us`, `2.5s`, `800ns` or `0`, at most 1000 s; in nanoseconds.
result<std::uint64_t> parse_lag(std::string_view text);
/// `10%` or `10`, from 0 to 100; as a share of 1.
result<double> parse_share(std::string_view text);

}  // namespace gpumem::bench
