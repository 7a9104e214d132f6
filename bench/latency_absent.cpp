// `latency` in a build without Google Benchmark.
#include "latency.hpp"

namespace gpumem::bench {

result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& /*rows*/, const options& /*with*/) {
  return status{errc::unsupported,
                "latency: this build has no Google Benchmark (libbenchmark-dev); scripts/deps installs it"};
}
std::string latency_table(const std::vector<latency_row>& /*rows*/, const replay_setup& /*setup*/) { return {}; }
std::string latency_json(const std::vector<latency_row>& /*rows*/, const replay_setup& /*setup*/) { return {}; }

}  // namespace gpumem::bench
