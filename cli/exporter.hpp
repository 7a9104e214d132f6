// `gpumem exporter`: serves the figures of `gpumem top` to Prometheus over HTTP.
#pragma once

#include <string>

namespace gpumem::cli {

struct exporter_options {
  std::string listen = "127.0.0.1:9843";
};

/// Serves until SIGINT or SIGTERM. Exit status: 0; 2 for an address that is invalid or cannot be bound; 1 in a build
/// without prometheus-cpp.
int run_exporter(const exporter_options& chosen);

}  // namespace gpumem::cli
