/// Adapts a baseline to the allocator interface, so that one replay loop serves both.
///
/// As programs must do by hand with these allocators, a free first orders the block's stream after every other stream
/// that used the block. Statistics hold only live and reserved bytes; pools, limits, captures and checks are not
/// supported. One thread.
#pragma once

#include <memory>

#include "cuda_replay_device.hpp"
#include "gpumem/allocator.hpp"

namespace gpumem::bench {

/// `kind` is a name from baseline.h. Requires that the device outlives the allocator.
result<std::unique_ptr<allocator>> open_baseline(cuda_replay_device& replay_device, const std::string& kind);

}  // namespace gpumem::bench
