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
#include "history_dump.hpp"
#include "pool.hpp"

namespace gpumem {

/// A logical device.
struct logical_pool {
  recorder_list recorders;                // the pool has their addresses
  std::unique_ptr<history_file> history;  // null where GPUMEM_HISTORY or GPUMEM_TRACE is not set
  std::unique_ptr<gpumem::pool> pool;
  gpumem::device* device;
  bool takes_everything;
};

/// Whether the device is usable. Call it before any lock: in a forked child a lock may stay locked for ever.
status usable(const device& gpu);

/// Calls `call` for each pool of every device that knows the stream, or only of `only` if not null, until one fails.
/// Also fails if no device knows the stream.
status at_each_that_knows(const std::vector<logical_pool>& pools, stream_ref stream, const device* only,
                          const std::function<status(pool&, std::uint64_t key)>& call);

class captures {
 public:
  /// `pools` must outlive it, and grows only before the first call.
  explicit captures(const std::vector<logical_pool>& pools) : pools_{pools} {}

  status begin(stream_ref stream);
  result<graph_ref> end(stream_ref stream);
  status release(graph_ref released);
  /// A capture on no stream that the caller can name (hold_captures.hpp).
  void hold(std::uint64_t number);
  void end_hold(std::uint64_t number) noexcept;

  /// True while any stream is known to capture, or a graph is known to be gone: `follow` then has work to do even
  /// without asking the device.
  [[nodiscard]] bool busy() const noexcept { return any_open() || gone_->any(); }
  /// Called before an allocation for `s`. With `asks`, asks the device and notes captures that began or ended since the
  /// last allocation. Watches the graph of a capture under way and releases destroyed graphs.
  status follow(const logical_pool& slot, const request& asking, bool asks);
  /// Called before memory is given back. Ends the captures of the device that are over, as far as that is known without
  /// a stream's handle: the graph is destroyed, or no blocking stream captures any more.
  void settle(device& gpu);
  /// Ends the captures of the device that are over. Asks each non-blocking stream that was noticed to capture, which
  /// must exist; a per-thread stream is asked by its own thread only. `reported_only`: none whose requests did not say
  /// that the caller reports the end.
  void ended_on(device& gpu, bool reported_only);

 private:
  using graph_parts = std::vector<std::pair<pool*, std::uint64_t>>;  // with the pool's number of the graph
  using graph_map = std::map<std::uint64_t, graph_parts>;            // by graph_ref::id

  /// A pool that the stream which captures is known to.
  struct part {
    pool* member;
    std::uint64_t key;  // of the stream
    pool_capture capture;
  };
  /// Ends in every pool with its life.
  struct open_capture {
    std::uint64_t number = 0;      // of its graph, too
    device* noticed_on = nullptr;  // null if the program announced it, which names no device
    std::uint64_t device_id = 0;   // 0 if the program announced it
    stream_ref stream;             // by which it is not known: see `find`
    bool blocking = false;         // noticed on a blocking stream of the device's own context
    bool watched = false;
    bool reported = false;  // `request::reports_capture_end`
    std::vector<part> parts;
    std::vector<pool_capture> elsewhere;  // of pools that do not know the stream
    graph_map::node_type graph;           // made ahead, because the end must not fail
  };
  using open_list = std::list<open_capture>;

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
  open_list::iterator find(const pool& member, std::uint64_t key) GPUMEM_REQUIRES(mutex_);
  status open(stream_ref stream, device* noticed_on, std::uint64_t device_id) GPUMEM_REQUIRES(mutex_);
  graph_ref close(open_list::iterator ended) noexcept GPUMEM_REQUIRES(mutex_);
  template <typename condition>
  void close_where(const condition& ended) GPUMEM_REQUIRES(mutex_);
  void close_superseded(const pool& member, std::uint64_t key, stream_ref stream) GPUMEM_REQUIRES(mutex_);
  void close_blocking(device& gpu) GPUMEM_REQUIRES(mutex_);
  status notice(const logical_pool& slot, stream_ref stream, std::uint64_t key, std::uint64_t current)
      GPUMEM_REQUIRES(mutex_);
  void release_gone();

  const std::vector<logical_pool>& pools_;
  checked_mutex mutex_;                         // taken before the pools' locks
  open_list open_ GPUMEM_GUARDED_BY(mutex_);    // rarely more than one
  graph_map graphs_ GPUMEM_GUARDED_BY(mutex_);  // of captures that have ended
  std::map<std::uint64_t, std::vector<pool_capture>> held_ GPUMEM_GUARDED_BY(mutex_);
  std::uint64_t next_number_ GPUMEM_GUARDED_BY(mutex_) = 1;
  std::atomic<std::size_t> open_count_{0};
  // Shared, because the driver may write after the allocator is gone.
  std::shared_ptr<gone_graphs> gone_ = std::make_shared<gone_graphs>();
};

}  // namespace gpumem
