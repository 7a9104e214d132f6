/// Adapts a baseline to the allocator interface, so that one replay loop serves both.
///
/// Baselines do not track uses on other streams. So a free first makes the block's stream wait for every other stream
/// that used the block, as a program must do by hand. Statistics hold only live and reserved bytes; pools, limits,
/// captures and checks are not supported. One thread.
#pragma once

#include <memory>

#include "cuda_replay_device.hpp"
#include "gpumem/allocator.hpp"

namespace gpumem::bench {

/// `kind` is a name from baseline.h. Requires that the device outlives the allocator.
result<std::unique_ptr<allocator>> open_baseline(cuda_replay_device& replay_device, const std::string& kind);

}  // namespace gpumem::bench
