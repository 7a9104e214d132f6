// Captures over every pool of a device: told by the program, or noticed where the device can be asked.
//
// Under `query` a device that reports captures is asked at each allocation, so that nobody has to tell. The graph is
// watched from the first allocation inside the capture on, and its blocks come back when it is destroyed.
#pragma once

#include <memory>
#include <vector>

#include "capture_log.hpp"
#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"
#include "pool.hpp"

namespace gpumem {

/// A logical device: its pool, and the device that the pool is on.
struct placed_pool {
  std::unique_ptr<pool> it;
  device* on;
};

/// Asked before any lock is taken: in a forked child a lock may be one that nobody will ever release.
status usable(const device& on);

/// Calls each pool of every device that knows the stream (of `only`, where that is not null), until one fails. Fails,
/// too, when no device knows it.
status at_each_that_knows(const std::vector<placed_pool>& pools, stream_ref s, const device* only,
                          const std::function<status(pool&, std::uint64_t key)>& call);

class captures {
 public:
  /// `pools` must outlive it, and grows only before the first call.
  explicit captures(const std::vector<placed_pool>& pools) : pools_{pools} {}

  status begin(stream_ref s);
  result<graph_ref> end(stream_ref s);
  status release(graph_ref g);

  /// True where `follow` has something to do though the device is not to be asked.
  [[nodiscard]] bool busy() const noexcept { return log_.busy(); }
  /// Before an allocation for `s`: takes note of a capture that began or ended since the last one, where the device is
  /// to be asked (`asks`), watches the graph of one that is under way, and lets go of graphs that are gone.
  status follow(device& on, stream_ref s, bool asks);
  /// The program has ended a capture on that device, where each stream that was noticed to capture still exists: asks
  /// them.
  void ended_on(device& on);

 private:
  /// A capture is one graph in every pool of the stream's device.
  struct graph_part {
    pool* in;
    std::uint64_t number;
  };

  using begun_in = std::vector<std::pair<pool*, std::uint64_t>>;
  result<begun_in> begin_on(stream_ref s, const device* on);
  static void free_to_cache(const begun_in& begun);
  void forbid_foreign_fences(const begun_in& capturing, bool yes);
  status begin_and_note(stream_ref s, device* on, std::uint64_t capture);
  status notice(device& on, stream_ref s, std::uint64_t now);
  void end_blocking_ones_over(device& on);
  void end_those(const std::vector<capture_log::entry>& over);
  graph_ref take_number();
  result<graph_ref> end_of(const capture_log::entry& open);
  status release_parts(graph_ref g);
  void let_go_of_gone();

  const std::vector<placed_pool>& pools_;
  capture_log log_;
  checked_mutex turns_;  // one thread at a time begins or ends what was noticed; before the pools' locks
  checked_mutex graphs_mutex_;
  std::vector<std::vector<graph_part>> graphs_
      GPUMEM_GUARDED_BY(graphs_mutex_);  // by graph_ref::id - 1; empty once released
};

}  // namespace gpumem
