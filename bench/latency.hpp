/// What a cached allocate and free cost: gpumem, the baselines, and the floor of the machine, in turn in one run.
///
/// Google Benchmark measures; its repetitions are interleaved at random, so that a busy moment of the machine meets all
/// alike. Times are of processor and lock, not of a GPU: nothing is enqueued.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "policy_row.hpp"

namespace gpumem::bench {

struct latency_row {
  std::string allocator;  ///< `gpumem/<policy>`, a baseline, or `floor`
  std::string name;  ///< the case: pair_4KiB, live_1e4, handoff, and of the floor empty_call, mutex, chase_1e4, spin
  unsigned threads = 1;
  bool oom = false;      ///< memory ran out, and there is no time
  double median_ns = 0;  ///< a pair, or one turn of the floor
  double least_ns = 0;
  double most_ns = 0;
  std::optional<double> double_share_ns;  ///< of it, what the double of the driver takes; simulated baselines only
};

/// `unsupported` where this build has no Google Benchmark.
result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& rows, const options& with);

std::string latency_table(const std::vector<latency_row>& rows, const replay_setup& setup);
std::string latency_json(const std::vector<latency_row>& rows, const replay_setup& setup);

}  // namespace gpumem::bench
