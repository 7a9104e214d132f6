/// Presents a baseline as an allocator, so that the replay treats it like gpumem.
///
/// Does what programs must do by hand with these allocators: it frees a block that a second stream used after that
/// stream's work. Statistics have only live and reserved bytes; no pools, limits, captures or checks. One thread.
#pragma once

#include <memory>

#include "cuda_stage.hpp"
#include "gpumem/allocator.hpp"

namespace gpumem::bench {

/// `kind` as baseline.h names it; the stage must outlive it.
result<std::unique_ptr<allocator>> open_baseline(cuda_stage& on, const std::string& kind);

}  // namespace gpumem::bench
