// Which blocks of a recording are live at a moment, grouped.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.hpp"

namespace gpumem::cli {

/// Live blocks of one requested size, or of one stream.
struct live_group {
  std::uint64_t key = 0;    ///< the size in bytes, or the recorded stream
  std::uint64_t bytes = 0;  ///< each block rounded up to 512
  std::uint64_t blocks = 0;
};

struct live_memory {
  std::uint64_t ops = 0;  ///< the operations before this moment
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;
  std::vector<live_group> by_size;  ///< most bytes first
  std::vector<live_group> by_stream;
};

/// The state after the first `ops` operations.
live_memory live_after(const bench::trace& recorded, std::uint64_t ops);

/// The number of operations after which most bytes are live, the first of several such moments.
std::uint64_t ops_until_peak(const bench::trace& recorded);

/// The operations before a refused request, and the request as the last one.
bench::trace until_refusal(const bench::trace& recorded, const bench::refused_request& request);

}  // namespace gpumem::cli
