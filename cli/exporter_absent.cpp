// Replaces metrics.cpp and exporter.cpp in builds without prometheus-cpp.
#include "exporter.hpp"
#include "job_rank.hpp"
#include "print_error.hpp"
#include "prometheus_text.hpp"

namespace gpumem::cli {
namespace {

constexpr const char* missing =
    "this build has no prometheus-cpp; expected gpumem built where it is installed (Debian: prometheus-cpp-dev)";

}  // namespace

result<std::string> prometheus_text(const nlohmann::json& /*shown*/) { return status{errc::unsupported, missing}; }

int run_exporter(const exporter_options& /*with*/) {
  print_error("gpumem: {}exporter: {}\n", rank_prefix(), missing);
  return 1;
}

}  // namespace gpumem::cli
