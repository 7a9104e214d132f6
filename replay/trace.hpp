/// A recorded trace, ready for replay: RMM's CSV log as compact arrays.
///
/// Pointers are resolved while loading: each operation names a slot, and slots of freed blocks are reused. So a replay
/// keeps its blocks in one small array without lookups. Invariants of a loaded trace: every free follows the allocation
/// of its slot and has its size; no slot is allocated twice without a free; there is at least one operation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench {

enum class op_kind : std::uint8_t { allocate, free };

struct trace_op {
  std::uint64_t time_ns = 0;  ///< since the first operation; never decreases
  std::uint64_t bytes = 0;    ///< as requested
  std::uint32_t slot = 0;     ///< the block; below `trace::slots`
  std::uint16_t stream = 0;   ///< index into `trace::streams`
  op_kind kind = op_kind::allocate;
};

/// A request that the recorded allocator refused.
struct refused_request {
  std::uint64_t before_op = 0;  ///< index of the operation that followed; the number of operations at the end
  std::uint64_t time_ns = 0;    ///< since the first operation
  std::uint64_t bytes = 0;
  std::uint16_t stream = 0;
};

struct trace {
  std::string name;  ///< file name without folder and `.csv.gz`
  std::string path;
  std::vector<trace_op> ops;
  std::vector<std::uint64_t> streams;  ///< recorded handles, in order of first appearance; 0 is the default stream
  std::uint32_t slots = 0;             ///< largest number of live blocks
  std::uint64_t skipped_rows = 0;      ///< rows of size 0
  std::uint64_t peak_live_bytes = 0;   ///< with each block rounded up to 512
  std::vector<refused_request> refused;
  std::string refusing_policy;             ///< gpumem's policy that refused; empty: another allocator, or no refusal
  std::uint64_t refused_within_bytes = 0;  ///< the largest limit within which that policy refused
  std::string cut;                         ///< describes the missing end of the file; empty: the file is whole
};

/// The trace with an added allocation and free for each refused request that the program did not get later. Leaves out
/// requests that the next allocation repeats, because they were served then. If no request remains, also removes the
/// refusing policy.
trace with_refused(const trace& recorded);

/// Reads a whole trace: CSV, plain or gzip, a compact file (binary_trace.hpp), or a memory snapshot of PyTorch
/// (snapshot.hpp), as FILE or FILE:DEVICE. An error is one line with file, line and reason: `invalid_argument` if there
/// is nothing to read, `corrupt` if the contents are not a trace. If the end of a file is missing, reads up to the last
/// whole row, event or section, sets `cut` and logs a line.
result<trace> load_trace(const std::string& path);

/// The files of a folder whose names end in `.csv`, `.csv.gz` or `.gmtrace`, in order of name; `invalid_argument` if
/// there are none.
result<std::vector<std::string>> traces_in(const std::string& folder);

}  // namespace gpumem::bench
