// Captures over every pool of a device, announced by the program or noticed by asking the device.
//
// Under `query`, gpumem asks a device that reports captures at each allocation, so that the program need not announce
// them. It watches the graph from the first allocation inside the capture on; the graph's blocks come back when it is
// destroyed.
#pragma once

#include <memory>
#include <vector>

#include "capture_log.hpp"
#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"
#include "pool.hpp"

namespace gpumem {

/// A logical device: its pool, and the device of the pool.
struct pool_slot {
  std::unique_ptr<pool> it;
  device* on;
};

/// Whether the device is usable. Call it before any lock: in a forked child a lock may stay locked for ever.
status usable(const device& on);

/// Calls `call` for each pool of every device that knows the stream, or only of `only` if not null, until one fails.
/// Also fails if no device knows the stream.
status at_each_that_knows(const std::vector<pool_slot>& pools, stream_ref s, const device* only,
                          const std::function<status(pool&, std::uint64_t key)>& call);

class captures {
 public:
  /// `pools` must outlive it, and grows only before the first call.
  explicit captures(const std::vector<pool_slot>& pools) : pools_{pools} {}

  status begin(stream_ref s);
  result<graph_ref> end(stream_ref s);
  status release(graph_ref g);

  /// True if `follow` has work to do even without asking the device.
  [[nodiscard]] bool busy() const noexcept { return log_.busy(); }
  /// Called before an allocation for `s`. With `asks`, asks the device and notes captures that began or ended since the
  /// last allocation. Watches the graph of a capture under way and releases destroyed graphs.
  status follow(device& on, stream_ref s, bool asks);
  /// Asks each stream of the device that was noticed to capture whether it still does, and ends the captures that are
  /// over. The streams must exist.
  void ended_on(device& on);

 private:
  /// A capture's parts: one graph in every pool of the stream's device.
  struct graph_part {
    pool* in;
    std::uint64_t number;
  };

  using begun_in = std::vector<std::pair<pool*, std::uint64_t>>;
  result<begun_in> begin_on(stream_ref s, const device* on);
  static void undo(const begun_in& begun);
  void forbid_foreign_fences(const begun_in& capturing, bool yes);
  status begin_and_note(stream_ref s, device* on, std::uint64_t capture);
  status notice(device& on, stream_ref s, std::uint64_t now);
  void end_blocking_ones_over(device& on);
  void end_those(const std::vector<capture_log::entry>& over);
  graph_ref take_number();
  result<graph_ref> end_of(const capture_log::entry& open);
  status release_parts(graph_ref g);
  void let_go_of_gone();

  const std::vector<pool_slot>& pools_;
  capture_log log_;
  checked_mutex turns_;  // serialises begin and end of noticed captures; taken before the pools' locks
  checked_mutex graphs_mutex_;
  std::vector<std::vector<graph_part>> graphs_
      GPUMEM_GUARDED_BY(graphs_mutex_);  // by graph_ref::id - 1; empty once released
};

}  // namespace gpumem
