// The memory of CUDA graphs: captures, and regions that several captures share.
//
// A capture's allocations belong to its graph, a slot of its own, until the graph is released. Other streams of the
// capture leave their frees to a second slot, which nobody allocates from. The pool's lock guards everything.
#pragma once

#include <cstdint>

#include "stream_order.hpp"

namespace gpumem {

class stream_graphs {
 public:
  explicit stream_graphs(stream_order& streams) noexcept : streams_{streams} {}

  /// Begins a capture of the stream into a graph, a new owner. The caller begins and ends its effect on fences
  /// (`stream_order::captures`). Throws std::bad_alloc with nothing changed.
  result<owner_id> begin_capture(owner_id owner);
  /// Ends the capture and returns the graph's number. Requires that the stream captures.
  std::uint64_t end_capture(owner_id owner) noexcept;
  /// Creates a graph's slot without a capture and returns its number. It may own allocations of several captures of the
  /// stream. Throws like `stream_order::slot_of`.
  /// `captures`: the stream is part of a capture, so its key may not be its own (`stream_slots::key_while_capturing`).
  std::uint64_t open_region(stream_ref stream, std::uint64_t key, bool captures = false);
  /// Whether the region was opened for this stream. Where a key may not be the stream's own, the handles decide; the
  /// first request outside of captures then gives the region its key.
  [[nodiscard]] bool is_region_of(owner_id region, stream_ref stream, std::uint64_t key) noexcept;
  /// The slot of an open graph or region; `idle_owner` if there is none.
  [[nodiscard]] owner_id find(std::uint64_t number) const noexcept;
  /// The owner of a graph's block that the stream with `key` has freed. The capturing stream's frees stay with the
  /// graph, which may reuse them at once; other streams' go to `withheld_owner` until the graph is released.
  owner_id owner_of_free(owner_id graph, std::uint64_t key);
  status release(std::uint64_t number);

 private:
  stream_order& streams_;
};

}  // namespace gpumem
