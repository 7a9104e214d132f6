/// A baseline as an allocator, so that the replay treats it as gpumem is treated.
///
/// What a program has to do for these by hand is done here: a block that a second stream used is freed behind that
/// stream's work. Statistics know live and reserved bytes; there are no pools, limits, captures or checks. One thread.
#pragma once

#include <memory>

#include "cuda_stage.hpp"
#include "gpumem/allocator.hpp"

namespace gpumem::bench {

/// `kind` as baseline.h names it; the stage must outlive it.
result<std::unique_ptr<allocator>> open_baseline(cuda_stage& on, const std::string& kind);

}  // namespace gpumem::bench
