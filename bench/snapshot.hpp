/// PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`) as traces.
///
/// A snapshot holds what happened since recording began and what is live at its end. What was live before follows from
/// both, and is allocated first, at time 0. A block ends where the program freed it (`free_requested`); what PyTorch's
/// own allocator did with segments is left out.
#pragma once

#include <string>
#include <string_view>

#include "trace.hpp"

namespace gpumem::bench {

/// Whether a file that begins so is a pickle.
inline bool begins_as_pickle(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

/// `bytes` is the whole file. `device` is the ordinal; -1 for the only one with a recording. The result has no name and
/// no path. `corrupt` says what is wrong, without the file's name.
result<trace> trace_of_snapshot(std::string_view bytes, int device);

}  // namespace gpumem::bench
