/// A sweep's folder as one file: the same bytes however many ranks or shards made it, in whatever order, after whatever
/// kill.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::bench::sweep {

struct merge_options {
  std::string folder;
  std::string output;    ///< ends in .json, .html or .parquet
  bool partial = false;  ///< also where units have no result yet
};

/// `bad_setting` for an output of another kind, a folder that is none, or units without a result.
status merge(const merge_options& with);

}  // namespace gpumem::bench::sweep
