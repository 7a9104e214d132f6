/// PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`) as traces.
///
/// A snapshot holds the events since recording began, and the blocks live at its end. Blocks live before the recording
/// follow from both; they are allocated first, at time 0. A block ends where the program freed it (`free_requested`).
/// The segment events of PyTorch's allocator are left out.
#pragma once

#include <string_view>

#include "trace.hpp"

namespace gpumem::bench {

/// Whether a file with this beginning is a pickle.
inline bool begins_as_pickle(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

/// `bytes` is the whole file. `device` is an ordinal, or -1 for the only device with a recording. The result has no
/// name and no path. `corrupt` gives the reason without the file's name. If the end of the file is missing, reads the
/// events before it and sets `cut` of the result; a block counts as live before the recording only if one of these
/// events frees it.
result<trace> trace_of_snapshot(std::string_view bytes, int device);

}  // namespace gpumem::bench
