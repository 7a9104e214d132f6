/// Baselines that are packages of others: PyTorch's, TensorFlow's and RMM's own allocators, over the driver's double.
///
/// scripts/peers builds a plug-in (baselines/baseline.h) against each package that is installed and writes a file
/// NAME.json beside it; README.md has the format. A peer brings its own libraries and may abort, so each is measured in
/// a process of its own, which is this program under the command `peer`. What goes wrong is the row's error, whatever
/// it is, and its text names the peer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "measure.hpp"

namespace gpumem::bench::peers {

/// Whether a baseline is one of those that scripts/peers knows, or has a file in the folder.
bool is_peer(const std::string& folder, const std::string& name);

/// The row of a peer, which need not be installed.
policy_row row_of(const std::string& folder, const std::string& name);

/// `measure_checked`, in the peer's process.
result<compare_figures> measure_checked(const trace& t, const policy_row& row, const replay_setup& setup);

struct peer_times {
  std::optional<double> host_ns_per_op;
  std::optional<double> loop_ns_per_op;
};
/// `measure_time` and `measure_loop`.
result<peer_times> measure_times(const trace& t, const policy_row& row, const replay_setup& setup);

/// `measure_fit`.
result<fit_figures> measure_fit(const trace& t, const policy_row& row, const replay_setup& setup);

/// The command `peer`: one request on standard input, one answer on standard output, as README.md has them.
int peer_main(const std::vector<std::string>& words);

}  // namespace gpumem::bench::peers
