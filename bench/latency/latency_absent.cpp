// `latency` in a build without Google Benchmark.
#include "latency.hpp"

namespace gpumem::bench {

result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& /*rows*/,
                                                 const std::vector<trace>& /*traces*/, const options& /*with*/) {
  return status{errc::unsupported,
                "latency: this build has no Google Benchmark (libbenchmark-dev); scripts/deps installs it"};
}

}  // namespace gpumem::bench
