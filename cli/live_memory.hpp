// The live blocks of a recording after some operation, grouped by size and by stream.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.hpp"

namespace gpumem::cli {

/// Live blocks of one requested size, or of one stream.
struct live_group {
  std::uint64_t key = 0;    ///< the size in bytes, or the recorded stream
  std::uint64_t bytes = 0;  ///< sum of the blocks, each rounded up to 512
  std::uint64_t blocks = 0;
};

struct live_memory {
  std::uint64_t ops = 0;  ///< number of operations before this moment
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  std::vector<live_group> by_size;  ///< most bytes first
  std::vector<live_group> by_stream;
};

/// The state after the first `ops` operations.
live_memory live_after(const bench::trace& recorded, std::uint64_t ops);

/// The number of operations after which live memory first reaches its peak.
std::uint64_t ops_until_peak(const bench::trace& recorded);

/// A trace of the operations before a refused request, with the request as the last operation.
bench::trace until_refusal(const bench::trace& recorded, const bench::refused_request& request);

}  // namespace gpumem::cli
