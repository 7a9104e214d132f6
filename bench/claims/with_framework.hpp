/// The claims measured on a framework itself, TensorFlow or JAX, on simulated cards (`gpumem simulate`).
///
/// framework_claims.py beside this file runs the framework and gives rows of figures; the verdict is made here, of what
/// the rows say in `agrees`.
#pragma once

#include "claim.hpp"
#include "options.hpp"

namespace gpumem::bench {

struct framework_findings {
  std::string id;    ///< of the claim
  std::string name;  ///< of the framework, with its version
  std::string experiment;
  std::string command;
  findings found;
};

/// `framework` is one of `with.frameworks`; those claims of `with.only` that it can be asked for. `unsupported` with
/// what to do where Python, the framework, `gpumem` or the libraries of CUDA 12 are missing. Minutes long.
result<std::vector<framework_findings>> measure_with(const std::string& framework, const options& with);

figures_json json_of(const framework_findings& of);

}  // namespace gpumem::bench
