/// `gpumem_bench claims`: statements of documents about memory policies, each tested by an experiment.
#pragma once

#include <string>

#include "gpumem/status.hpp"
#include "options.hpp"

namespace gpumem::bench {

struct claims_report {
  std::string table;
  std::string json;
  std::string page_data;  ///< input of page.js
};

/// Runs all claims, or those that `options.only` names. Simulated, the same seed gives the same text. On the card of
/// `options.setup`, runs the claims that need one card.
result<claims_report> run_claims(const options& options);

}  // namespace gpumem::bench
