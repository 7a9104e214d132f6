/// A row of the bench: a policy with its settings, from text such as `growth,limit=4GiB` or `tenants=2`.
///
/// The text is a policy's name, its parameters (`expandable:slack=5%`) and any setting of options.def in small letters,
/// `,` between them and `+` within a list. A part behind parameters that names no setting is a parameter, too. What it
/// does not name comes from GPUMEM_* in the environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace gpumem::bench {

struct policy_row {
  std::string text;      ///< as given: the row's name in every output
  std::string baseline;  ///< not a policy of gpumem, but one of bench/baselines/baseline.h; empty: gpumem
  std::string peer;      ///< of a baseline that is a package of others (peers/peer.hpp): its file in build/peers
  std::string version;   ///< of that package
  std::string plug_in;   ///< of a baseline: the file with it; empty: the project's own
  settings with;
  unsigned tenants = 1;           ///< replays of the trace, half a trace out of step
  bool own_plan = false;          ///< follows a plan that was made from the trace it is replayed on
  bool takes_everything = false;  ///< all the device allows, at once: its peak of reserved says little
};

/// GPUMEM_* read strictly, except for what has no meaning here (GPUMEM_TRACE, GPUMEM_STATS).
result<settings> settings_from(const environment& variables);

/// `defaults` is what the environment says; `limit` (may be empty) applies where `text` names none.
result<policy_row> parse_policy_row(std::string_view text, const settings& defaults, std::string_view limit);

/// The rows where none are asked for: GPUMEM_POLICY alone where it is set, else every policy that is known, those that
/// need a limit with `share` of the device.
std::vector<std::string> default_rows(const settings& defaults, std::string_view limit, std::string_view share);

}  // namespace gpumem::bench
