/// Baselines from other packages: the allocators of PyTorch, TensorFlow and RMM, over the simulated driver.
///
/// scripts/peers builds a plug-in (replay/baseline.h) against each installed package and writes a file NAME.json;
/// README.md has the format. A peer loads its own libraries and may abort, so each is measured in its own process: this
/// program under the command `peer`. Any failure becomes the row's error, and its text names the peer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure.hpp"

namespace gpumem::bench::peers {

/// Whether a baseline is known to scripts/peers or has a file in the folder.
bool is_peer(const std::string& folder, const std::string& name);

/// The row of a peer, installed or not.
policy_row row_of(const std::string& folder, const std::string& name);

/// `measure_checked` in the peer's process.
result<compare_figures> measure_checked(const trace& recorded, const policy_row& row, const replay_setup& setup);

struct peer_times {
  std::optional<double> host_ns_per_op;
  std::optional<double> loop_ns_per_op;
};
/// `measure_time` and `measure_loop` in the peer's process.
result<peer_times> measure_times(const trace& recorded, const policy_row& row, const replay_setup& setup);

/// `measure_fit` in the peer's process.
result<fit_figures> measure_fit(const trace& recorded, const policy_row& row, const replay_setup& setup);

/// Runs the command `peer`: reads one request from standard input, writes one answer to standard output (README.md).
int peer_main(const std::vector<std::string>& arguments);

}  // namespace gpumem::bench::peers
