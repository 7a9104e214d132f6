/// The invariants of a loaded trace (replay/trace.hpp), which a reader keeps for any bytes.
#pragma once

#include <vector>

#include "fuzzed.hpp"
#include "trace.hpp"

namespace gpumem::fuzz {

inline void check(const result<bench::trace>& read) {
  if (!read) return require(!read.why().message().empty(), "a refusal has a reason");
  std::vector<std::uint64_t> bytes_of(read->slots);  // 0: free
  std::uint64_t latest_ns = 0;
  require(!read->ops.empty(), "a trace has at least one operation");
  for (const bench::trace_op& op : read->ops) {
    require(op.slot < read->slots, "a slot is one of the trace's");
    require(op.stream < read->streams.size(), "a stream is one of the trace's");
    require(op.time_ns >= latest_ns, "times never decrease");
    require(op.bytes != 0, "a block has at least one byte");
    const bool allocates = op.kind == bench::op_kind::allocate;
    require(bytes_of[op.slot] == (allocates ? 0 : op.bytes), "each free follows the allocation of its slot");
    bytes_of[op.slot] = allocates ? op.bytes : 0;
    latest_ns = op.time_ns;
  }
}

}  // namespace gpumem::fuzz
