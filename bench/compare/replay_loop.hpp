/// A trace as a tight loop of allocations and frees, with all lookups resolved in advance.
///
/// Each block is freed on its own stream, even if the trace frees it on another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trace.hpp"

namespace gpumem::bench {

struct loop_op {
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;  ///< the block's stream
  bool frees = false;
};

/// A trace's operations in their order.
struct replay_loop {
  std::vector<loop_op> ops;
  std::vector<loop_op> live_at_end;  ///< frees of the blocks that are live at the end
  std::size_t slots = 0;
  std::size_t streams = 0;
  std::size_t frees = 0;
};

replay_loop loop_of(const trace& recorded);

}  // namespace gpumem::bench
