// The address at which a server listens.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// `ADDRESS:PORT` or `[ADDRESS]:PORT` (IPv6) with a numeric address, for a text with an address or a host's name. Port
/// 0 is any free one. `bad_setting` if it is none, or if this program cannot listen there now.
result<std::string> listen_address(const std::string& text);

}  // namespace gpumem::cli
