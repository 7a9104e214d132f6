// State that the parts of an arena share: heap, stream order, paging, budget, policy and counters.
//
// Each part (fence_calls, growth, pager, trimmer, oom_ladder, plan_executor) is a class over this state, with its own
// steps and private members. `arena` (arena.hpp) composes them.
#pragma once

#include <memory>
#include <vector>

#include "best_fit.hpp"
#include "block_cache.hpp"
#include "block_uses.hpp"
#include "budget.hpp"
#include "flight_record.hpp"
#include "gpumem/request.hpp"
#include "gpumem/statistics.hpp"
#include "guarded_policy.hpp"
#include "heap.hpp"
#include "page_manager.hpp"
#include "pool_config.hpp"
#include "segment_observers.hpp"
#include "stream_graphs.hpp"
#include "stream_holds.hpp"
#include "stream_order.hpp"
#include "unlocked_section.hpp"

namespace gpumem {

/// A pending request: its requirements, and the refusals so far.
struct pending_request {
  owner_id owner = idle_owner;
  owner_id stream = idle_owner;  ///< the slot of the requesting stream
  unsigned segment_class = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = block_granularity;
  address place = 0;  ///< required address in its region; 0: anywhere
  std::uint64_t stream_key = 0;
  bool capturing = false;
  bool may_divide = false;  ///< segments that should stay whole, because the pool did not grow
  bool apart = false;       ///< its class is that of a stream's range (page_rules::streams_apart)
  bool any_range = false;   ///< not only the range of its own class
  bool limit_refused = false;
  bool device_refused = false;
  bool asked_whether_idle = false;  ///< the streams were asked if they have work, which a request does once
  bool grows_beside_idle = false;   ///< beside segments that go back only if the device is idle
  std::uint64_t grown_bytes = 0;    ///< by which this request last made the pool grow, in segments
  status driver_error;
  std::optional<wait_deadline> deadline;  ///< set when the request first looks beyond free memory

  [[nodiscard]] bool may_be_in(unsigned block_class) const noexcept {
    return any_range || block_class == segment_class;
  }
  /// The least segment that has room for the request wherever it begins.
  [[nodiscard]] std::uint64_t segment_bytes() const noexcept {
    return alignment <= block_granularity ? bytes : bytes + alignment;
  }
};

/// The result of one step for a request. A step that released the lock has searched again since.
class [[nodiscard]] step_result {
 public:
  enum class outcome : std::uint8_t {
    found,      ///< the request has its block
    waited,     ///< something changed: search again
    in_flight,  ///< another thread's driver call may bring memory, but the request may wait no longer
    nothing,
  };
  step_result(outcome value) noexcept : outcome_{value} {}  // NOLINT(google-explicit-constructor)
  /// `no_block` becomes `nothing`.
  static step_result of_search(block_index placed) noexcept {
    return placed != no_block ? step_result{placed} : outcome::nothing;
  }

  [[nodiscard]] bool found() const noexcept { return outcome_ == outcome::found; }
  [[nodiscard]] bool waited() const noexcept { return outcome_ == outcome::waited; }
  /// `no_block` unless found.
  [[nodiscard]] block_index block() const noexcept { return block_; }

 private:
  explicit step_result(block_index placed) noexcept : outcome_{outcome::found}, block_{placed} {}
  outcome outcome_;
  block_index block_ = no_block;
};

/// Driver calls that threads make without the lock.
struct calls_in_flight {
  blocking_calls host_waits;       ///< waits for fences
  blocking_calls give_backs;       ///< segment and page returns, and page moves
  blocking_calls records;          ///< fence records; they block on full queues
  blocking_calls context_records;  ///< fence records that invalidate a capture
};

struct arena_state {
  /// `device` and `source`, which serves the caches, must outlive it.
  arena_state(device& device, pool_config configuration, cache_source& source, std::unique_ptr<policy> policy);

  const pool_config config;
  mutable arena_mutex mutex;
  device& own_device;
  block_cache caches;           ///< threads' caches; for the heap their blocks are out, like the program's
  segment_observers observers;  ///< called without the lock
  budget pool_budget;
  guarded_policy pool_policy GPUMEM_GUARDED_BY(under_arena_lock);
  heap blocks GPUMEM_GUARDED_BY(under_arena_lock);
  stream_order streams;
  stream_graphs graphs{streams};
  block_uses uses GPUMEM_GUARDED_BY(under_arena_lock);
  page_manager pages GPUMEM_GUARDED_BY(under_arena_lock);
  page_rules rules GPUMEM_GUARDED_BY(under_arena_lock);
  best_fit fits GPUMEM_GUARDED_BY(under_arena_lock);
  growth_gate gate GPUMEM_GUARDED_BY(under_arena_lock);
  calls_in_flight calls GPUMEM_GUARDED_BY(under_arena_lock);
  std::vector<oom_callback> callbacks GPUMEM_GUARDED_BY(under_arena_lock);  ///< called before a request is refused
  /// Bytes of segments that left the heap and that the driver has not taken back yet, or refused to take.
  std::uint64_t in_transit_bytes GPUMEM_GUARDED_BY(under_arena_lock) = 0;
  /// Counters; `arena::figures` fills in the bytes.
  statistics counts GPUMEM_GUARDED_BY(under_arena_lock);
  flight_record flight GPUMEM_GUARDED_BY(under_arena_lock);

  /// Sets the policy's rules: for pages, or for segments if `own` has no range.
  void set_rules(const page_rules& own) GPUMEM_UNDER_LOCK {
    const bool keeps_whole = own.range_bytes == 0 && pool_policy.keeps_segments_whole();  // may throw
    rules = own;
    fits = {own.lowest_fit_bytes, own.upper_end_bytes, own.upper_end_pool_bytes, false, keeps_whole};
  }
  /// True if memory is taken page by page.
  [[nodiscard]] bool paged() const noexcept GPUMEM_UNDER_LOCK { return rules.range_bytes != 0; }
  [[nodiscard]] pool_view view() const GPUMEM_UNDER_LOCK;
  /// True while another thread's driver call may bring memory: it grows, gives back, or records a fence.
  [[nodiscard]] bool in_flight() const noexcept GPUMEM_UNDER_LOCK {
    return gate.taken() || calls.give_backs.any() || calls.records.any() || calls.context_records.any();
  }
  /// The request's deadline; its time begins with the first call.
  [[nodiscard]] const wait_deadline& deadline_of(pending_request& request) const {
    if (!request.deadline) request.deadline.emplace(own_device, config.free_wait_ns);
    return *request.deadline;
  }
  /// Carves a live block from memory that is free for the request's owner; `no_block` if nothing fits.
  [[nodiscard]] block_index search(const pending_request& request) GPUMEM_UNDER_LOCK;
  /// Whether the request may take memory of a segment that should stay whole.
  [[nodiscard]] bool may_divide(const pending_request& request) const GPUMEM_UNDER_LOCK;
  /// Whether free memory of the request's owner would serve it, but should stay whole.
  [[nodiscard]] bool keeps_whole(const pending_request& request) const GPUMEM_UNDER_LOCK;
  /// False while a capture forbids giving memory back. Releases the lock to ask the device for captures that gpumem has
  /// not noticed.
  [[nodiscard]] bool may_give_back(arena_lock& lock) const GPUMEM_UNDER_LOCK;
  /// Records a slow-path event; `amount` is in bytes, or in nanoseconds for a wait.
  void note(slow_event kind, std::uint64_t amount) noexcept GPUMEM_UNDER_LOCK {
    flight.note(kind, amount, pool_budget.reserved());
  }
  /// Counts `bytes` that the pool has just taken; the budget includes them already.
  void count_taken(std::uint64_t bytes) noexcept GPUMEM_UNDER_LOCK;

  /// The thread of `cache` ends, and leaves its blocks and figures to the pool. Takes the lock.
  void thread_ends(thread_cache& cache);

  /// Makes room for one segment's records, then makes the driver call without the lock. Other threads leave that room
  /// alone.
  template <typename Call>
  auto with_room_for_segment(arena_lock& lock, const Call& call) GPUMEM_UNDER_LOCK {
    blocks.make_room_for_segment();
    blocks.make_room_for_blocks(1);
    blocks.set_blocks_aside(1);
    auto made = [&]() GPUMEM_UNDER_LOCK {
      const unlocked_section unlocked{lock};
      return call();
    }();
    blocks.set_blocks_aside(0);
    return made;
  }
};

}  // namespace gpumem
