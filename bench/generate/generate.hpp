/// Generates any number of traces from a seed: steps of networks that differ in model, batch, length, optimiser and
/// parallelism, and variations of recorded traces. The same seed gives the same files on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli_app.hpp"
#include "gpumem/status.hpp"
#include "trace.hpp"

namespace gpumem::bench {

struct generate_options {
  std::string folder;
  std::uint64_t count = 1000;
  std::uint64_t seed = 1;
  std::uint64_t ops = 4000;             ///< operations in each trace, approximately
  std::vector<std::string> recordings;  ///< files and folders; empty: the bundled traces
  bool patterns = false;                ///< the patterns of patterns.cpp instead of networks, recordings and serving
  bool refused = false;                 ///< programs whose last request is refused (refused.cpp) instead of those
  std::string ending = ".gmtrace";      ///< or `.csv.gz`
  unsigned jobs = 1;
  bool quiet = false;
};

/// Generates trace `number` with its name, such as `transformer-00012-h1024x24-b8-s512-adam-tensor4`. Depends only on
/// the seed, the number, `ops` and the recordings.
trace generate_trace(std::uint64_t seed, std::uint64_t number, std::uint64_t ops, const std::vector<trace>& recordings);

/// Generates trace `number` of the patterns, with its name.
trace generate_pattern(std::uint64_t seed, std::uint64_t number, std::uint64_t ops);

/// Generates trace `number` of the programs whose last request is refused, with its name.
trace generate_refused(std::uint64_t seed, std::uint64_t number, std::uint64_t ops);

/// Generates all traces, each written whole or not at all. Replaces existing files of the same names.
status generate(const generate_options& options);

/// Declares the options of `generate`.
void add_generate_options(CLI::App& app, generate_options& options);

/// Runs `gpumem_bench generate`: exit status 0, or 2.
int generate_main(std::vector<std::string> arguments);

}  // namespace gpumem::bench
