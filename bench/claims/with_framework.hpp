/// The claims measured on a framework itself, TensorFlow or JAX, on simulated cards (`gpumem simulate`).
///
/// framework_claims.py runs the framework and returns rows of figures. The verdict follows from their field `agrees`.
#pragma once

#include "claim.hpp"
#include "options.hpp"

namespace gpumem::bench {

struct framework_findings {
  std::string id;    ///< the claim's ID
  std::string name;  ///< the framework's name and version
  std::string experiment;
  std::string command;
  findings found;
};

/// Runs the claims of `options.only` that apply to `framework`, one of `options.frameworks`. Takes minutes.
/// `unsupported`, with what to install, if Python, the framework, `gpumem` or the libraries of CUDA 12 are missing.
result<std::vector<framework_findings>> measure_with(const std::string& framework, const options& options);

figures_json json_of(const framework_findings& finding);

}  // namespace gpumem::bench
