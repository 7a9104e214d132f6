/// A row of the bench: a policy with its settings, from text such as `growth,limit=4GiB` or `tenants=2`.
///
/// The text is a policy's name, its parameters (`expandable:slack=5%`) and any settings of options.def in small
/// letters, with `,` between them and `+` within a list. After parameters, a part that names no setting is another
/// parameter. Settings that the text does not name come from GPUMEM_* in the environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace gpumem::bench {

struct policy_row {
  std::string text;      ///< the text as given; names the row in every output
  std::string baseline;  ///< a name from replay/baseline.h; empty: gpumem
  std::string peer;      ///< path of the peer's file (peers/peer.hpp); empty: no peer
  std::string version;   ///< version of the peer's package
  std::string plug_in;   ///< file of the baseline's plug-in; empty: the project's own
  settings config;
  unsigned tenants = 1;           ///< simultaneous replays of the trace, half a trace out of step
  bool own_plan = false;          ///< follows a plan made from its own trace
  bool takes_everything = false;  ///< takes all of the device's memory at once, so it is not compared by peak reserved
};

/// Reads GPUMEM_* strictly, except variables without a meaning here (GPUMEM_TRACE, GPUMEM_STATS).
result<settings> settings_from(const environment& variables);

/// `defaults` are the environment's settings. `limit` applies if `text` names none; may be empty.
result<policy_row> parse_policy_row(std::string_view text, const settings& defaults, std::string_view limit);

/// The rows used if none are requested: GPUMEM_POLICY alone if it is set, else every known policy. Policies that need a
/// limit get `share` of the device.
std::vector<std::string> default_rows(const settings& defaults, std::string_view limit, std::string_view share);

}  // namespace gpumem::bench
