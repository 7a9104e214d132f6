/// Merges a sweep's folder into one file. The bytes do not depend on the number of ranks or shards, their order, or
/// interruptions.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::bench::sweep {

struct merge_options {
  std::string folder;
  std::string output;    ///< ends in .json, .html or .parquet
  bool partial = false;  ///< allows units without a result
};

/// `bad_setting` for another output format, a folder without a sweep, or units without a result.
status merge(const merge_options& options);

}  // namespace gpumem::bench::sweep
