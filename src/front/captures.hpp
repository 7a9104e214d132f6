// Captures across all pools of a device, and the graphs that they produce.
//
// The program may announce captures (`begin`, `end`, `release`). Under `query`, gpumem also asks a device that reports
// captures at each allocation, so that the program need not. In both cases gpumem watches the graph from the first
// allocation inside the capture on, and reclaims its blocks when the graph is destroyed. The driver reports that on its
// own thread, which must not make driver calls: the callback stores the capture's number for the next allocation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"
#include "logical_pool.hpp"

namespace gpumem {

class captures {
 public:
  /// `pools` must outlive this object, and must not change after the first call.
  explicit captures(const std::vector<logical_pool>& pools) : pools_{pools} {}

  status begin(stream_ref stream);
  result<graph_ref> end(stream_ref stream);
  status release(graph_ref released);
  /// A capture on a stream that the caller cannot name (`pooled_allocator::hold_capture`).
  void hold(std::uint64_t number);
  void end_hold(std::uint64_t number) noexcept;

  /// True while a stream is known to capture, or a graph is known to be destroyed: `follow` then has work to do even
  /// without a query of the device.
  [[nodiscard]] bool busy() const noexcept { return any_open() || gone_->any(); }
  /// Called before an allocation. If `asks`, queries the device and notes captures that began or ended since the last
  /// allocation. Watches the graph of an open capture and releases destroyed graphs. Sets `*key` to the
  /// stream's key if it looked that up. An argument, because to copy a returned optional slows each allocation.
  status follow(const logical_pool& slot, const request& asking, bool asks, std::optional<std::uint64_t>* key);
  /// Called before the pool returns memory. Ends captures of the device that are over, if gpumem can tell without a
  /// stream's handle: the graph is destroyed, or no blocking stream captures any more.
  void settle(device& gpu);
  /// Ends captures of the device that are over. Queries each non-blocking stream that was noticed to capture; the
  /// stream must still exist. Only its own thread queries a per-thread stream. `reported_only` limits this to captures
  /// with a request that set `reports_capture_end`.
  void ended_on(device& gpu, bool reported_only);

 private:
  using graph_parts = std::vector<std::pair<pool*, std::uint64_t>>;  // pool, and its number for the graph
  using graph_map = std::map<std::uint64_t, graph_parts>;            // by graph_ref::id

  /// The part of a capture in one pool that knows the stream.
  struct part {
    pool* member;
    std::uint64_t key;  // of the stream
    pool_capture capture;
  };
  /// A capture under way. Its destruction ends it in every pool.
  struct open_capture {
    std::uint64_t number = 0;      // also the id of its graph
    device* noticed_on = nullptr;  // null if the program announced it, which names no device
    std::uint64_t device_id = 0;   // 0 if the program announced it
    stream_ref stream;             // does not identify the capture alone: see `find`
    bool may_block = false;        // perhaps on a blocking stream of the device's own context
    bool blocking = false;         // noticed, of a capture on such a stream: see `note_blocking`
    bool watched = false;
    bool reported = false;  // `request::reports_capture_end`
    std::vector<part> parts;
    std::vector<pool_capture> elsewhere;  // in pools that do not know the stream
    graph_map::node_type graph;           // preallocated, because `close` must not fail
  };
  using open_list = std::list<open_capture>;

  /// The numbers of captures whose graphs are destroyed but not yet released.
  class gone_graphs {
   public:
    /// `number`: a list with one element, allocated earlier, so that this cannot fail.
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
  void note_blocking(open_capture& made) GPUMEM_REQUIRES(mutex_);
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
  // Shared, because the driver's callback may run after the allocator is destroyed.
  std::shared_ptr<gone_graphs> gone_ = std::make_shared<gone_graphs>();
};

}  // namespace gpumem
