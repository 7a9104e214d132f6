// The address at which a server listens.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// Resolves `ADDRESS:PORT` or `HOST:PORT` to a numeric IPv4 address and port. Port 0 means any free port.
/// `bad_setting` for any other text, or if this program cannot listen there.
result<std::string> listen_address(const std::string& text);

}  // namespace gpumem::cli
