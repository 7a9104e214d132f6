/// `gpumem_bench claims`: what documents say of memory policies, each as an experiment with a figure and a verdict.
#pragma once

#include <string>

#include "gpumem/status.hpp"
#include "options.hpp"

namespace gpumem::bench {

struct claims_report {
  std::string table;
  std::string json;
  std::string page_data;  ///< as page.js reads it
};

/// Runs all claims, or those that `with.only` names: simulated, and then the same seed gives the same text; or on the
/// card of `with.setup` those that can be.
result<claims_report> run_claims(const options& with);

}  // namespace gpumem::bench
