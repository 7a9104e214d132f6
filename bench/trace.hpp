/// A recorded trace, ready to be replayed: RMM's CSV log as compact arrays.
///
/// Pointers are resolved while loading: each operation names a slot, and slots of freed blocks are used again, so
/// a replay keeps its blocks in one small array and looks nothing up. Invariant of a loaded trace: every free follows
/// the allocation of its slot and states its size, no slot is allocated twice, and there is at least one operation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench {

enum class op_kind : std::uint8_t { allocate, free };

struct trace_op {
  std::uint64_t time_ns = 0;  ///< since the first operation, never backwards
  std::uint64_t bytes = 0;    ///< as requested
  std::uint32_t slot = 0;     ///< which block; below `trace::slots`
  std::uint16_t stream = 0;   ///< index into `trace::streams`
  op_kind kind = op_kind::allocate;
};

struct trace {
  std::string name;  ///< the file's name without folder and `.csv.gz`
  std::string path;
  std::vector<trace_op> ops;
  std::vector<std::uint64_t> streams;  ///< as recorded, in order of first appearance; 0 is the default stream
  std::uint32_t slots = 0;             ///< most blocks live at once
  std::uint64_t skipped_rows = 0;      ///< of size 0, and allocations that failed when they were recorded
  std::uint64_t peak_live_bytes = 0;   ///< each block rounded up to 512
};

/// Reads all of a trace: CSV, plain or gzip, a compact file (binary_trace.hpp), or a memory snapshot of PyTorch
/// (snapshot.hpp), as FILE or FILE:DEVICE. Otherwise one line that names file, line and reason: `invalid_argument`
/// where there is nothing to read, `corrupt` where what is there is no trace.
result<trace> load_trace(const std::string& path);

/// The files of a folder whose names end in `.csv`, `.csv.gz` or `.gmtrace`, in order of name; `invalid_argument` for
/// none.
result<std::vector<std::string>> traces_in(const std::string& folder);

}  // namespace gpumem::bench
