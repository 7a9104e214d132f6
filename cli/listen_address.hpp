// The address at which a server listens.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// `ADDRESS:PORT` with a numeric IPv4 address, for a text with an address or a host's name. Port 0 is any free one.
/// `bad_setting` for any other text, and if this program cannot listen there now.
result<std::string> listen_address(const std::string& text);

}  // namespace gpumem::cli
