// Captures over every pool of a device, and the graphs that they left.
//
// The program may announce captures (`begin`, `end`, `release`). Under `query`, gpumem also asks a device that reports
// captures at each allocation, so that the program need not. In both cases gpumem watches the graph from the first
// allocation inside the capture on, so that its blocks come back when it is destroyed. The driver reports that on its
// own thread, which must not call anything: the callback leaves the capture's number, and the next allocation reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "allocation_recorder.hpp"
#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"
#include "pool.hpp"

namespace gpumem {

/// A logical device.
struct pool_slot {
  recorder_list recorders;  // the pool has their addresses
  std::unique_ptr<pool> it;
  device* on;
  bool takes_everything;
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

  /// True while any stream is known to capture, or a graph is known to be gone: `follow` then has work to do even
  /// without asking the device.
  [[nodiscard]] bool busy() const noexcept { return any_open() || gone_->any(); }
  /// Called before an allocation for `s`. With `asks`, asks the device and notes captures that began or ended since the
  /// last allocation. Watches the graph of a capture under way and releases destroyed graphs.
  status follow(device& on, stream_ref s, bool asks);
  /// Asks each stream of the device that was noticed to capture whether it still does, and ends the captures that are
  /// over. The streams must exist.
  void ended_on(device& on);

 private:
  using in_pools = std::vector<std::pair<pool*, std::uint64_t>>;  // with the pool's number of a stream or a graph

  struct open_capture {
    std::uint64_t number;      // of its graph, too
    const device* noticed_on;  // null if the program announced it, which names no device
    std::uint64_t device_id;   // 0 if the program announced it
    stream_ref stream;
    bool blocking;  // noticed on a blocking stream of the device's own context
    bool watched;
    in_pools keys;  // its end must not use the stream's handle, which may be dead or reused by then
  };

  /// The numbers of the captures whose graphs are destroyed, until they have been handled.
  class gone_graphs {
   public:
    /// `number` is a list of one, because this must not fail.
    void put(std::list<std::uint64_t>& number) noexcept;
    [[nodiscard]] std::vector<std::uint64_t> all() const;
    void forget(std::uint64_t number) noexcept;
    [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_acquire); }

   private:
    mutable checked_mutex mutex_;
    std::list<std::uint64_t> numbers_ GPUMEM_GUARDED_BY(mutex_);
    std::atomic<bool> any_{false};
  };

  [[nodiscard]] bool any_open() const noexcept { return open_count_.load(std::memory_order_relaxed) != 0; }
  open_capture* find(stream_ref s) GPUMEM_REQUIRES(mutex_);
  status begin_in_pools(stream_ref s, device* on, std::uint64_t device_id) GPUMEM_REQUIRES(mutex_);
  result<graph_ref> end_in_pools(const open_capture& open) GPUMEM_REQUIRES(mutex_);
  void forbid_foreign_fences(const in_pools& capturing, bool yes);
  status notice(device& on, stream_ref s, std::uint64_t now) GPUMEM_REQUIRES(mutex_);
  template <typename condition>
  void end_noticed_on(const device& on, const condition& over) GPUMEM_REQUIRES(mutex_);
  void release_gone();

  const std::vector<pool_slot>& pools_;
  checked_mutex mutex_;                                                 // taken before the pools' locks
  std::vector<open_capture> open_ GPUMEM_GUARDED_BY(mutex_);            // rarely more than one
  std::map<std::uint64_t, in_pools> graphs_ GPUMEM_GUARDED_BY(mutex_);  // by graph_ref::id; empty: it failed to end
  std::uint64_t next_number_ GPUMEM_GUARDED_BY(mutex_) = 1;
  std::atomic<std::size_t> open_count_{0};
  // Shared, because the driver may write after the allocator is gone.
  std::shared_ptr<gone_graphs> gone_ = std::make_shared<gone_graphs>();
};

}  // namespace gpumem
