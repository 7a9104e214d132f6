// What the parts of an arena share: its heap, who may have a block when, what stands behind it, and the figures.
//
// Each part (fence_calls, growth, pager, trimmer, oom_ladder, planned_requests) is a class over this, with
// its own steps and what only it remembers. `arena` (arena.hpp) puts them together.
#pragma once

#include <memory>
#include <string>

#include "best_fit.hpp"
#include "block_uses.hpp"
#include "budget.hpp"
#include "flight_record.hpp"
#include "gpumem/request.hpp"
#include "gpumem/settings.hpp"
#include "gpumem/statistics.hpp"
#include "guarded_policy.hpp"
#include "heap.hpp"
#include "page_manager.hpp"
#include "segment_observers.hpp"
#include "stream_holds.hpp"
#include "stream_order.hpp"
#include "unlocked_section.hpp"

namespace gpumem {

namespace plan {
struct step_plan;
}

struct arena_config {
  int ordinal = 0;  ///< logical
  std::string name;
  std::string policy_name;
  std::uint64_t limit_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_at_start_bytes = 0;
  stream_id_mode stream_ids = stream_id_mode::query;
  stream_reuse reuse = stream_reuse::device;
  std::shared_ptr<const plan::step_plan> plan;  ///< to be followed; may be null
  std::shared_ptr<group_ledger> group;          ///< a second cap, shared with other processes; may be null
  bool verbose = false;                         ///< GPUMEM_VERBOSE
  /// The longest that one request waits on the host (GPUMEM_FREE_WAIT); 0: for no work, UINT64_MAX: for ever.
  std::uint64_t free_wait_ns = 10'000'000'000;
};

/// The threads' caches above an arena, as the arena sees them. Called under the arena's lock.
class cache_client {
 public:
  /// Returns everything that they hold to the arena; false if that is nothing.
  virtual bool reclaim_all() = 0;
  /// Returns that owner's blocks and ends its caches; of every owner for `idle_owner`.
  virtual void reclaim(owner_id only) = 0;
  /// The arena has no free memory left: caches should keep less.
  virtual void pressure() noexcept = 0;
  /// What the program holds, and the most that it held.
  [[nodiscard]] virtual std::uint64_t live_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t peak_live_bytes() const noexcept = 0;

 protected:
  ~cache_client() = default;
};

/// A request on its way: what to look for, and what stood in its way.
struct pending_request {
  owner_id owner = idle_owner;
  owner_id stream = idle_owner;  ///< the slot of the stream that asks
  unsigned segment_class = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = block_granularity;
  address place = 0;  ///< where in its region it has to lie; 0: anywhere
  std::uint64_t stream_key = 0;
  bool capturing = false;
  bool limit_refused = false;
  bool device_refused = false;
  status driver_error;
  std::optional<wait_deadline> deadline;  ///< from the first look beyond what is free
};

/// What a step did for a request. A step that gave the lock up has searched since.
class [[nodiscard]] step_result {
 public:
  enum class outcome : std::uint8_t {
    found,      ///< the request has its block
    waited,     ///< something changed: look again
    in_flight,  ///< another thread's driver call may bring memory, and the request may wait no longer
    nothing,
  };
  step_result(outcome value) noexcept : outcome_{value} {}  // NOLINT(google-explicit-constructor)
  /// `no_block` is nothing.
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
  blocking_calls host_waits;       ///< for fences
  blocking_calls give_backs;       ///< of segments and pages, and pages that move
  blocking_calls records;          ///< of fences, which block while a queue is full
  blocking_calls context_records;  ///< of fences of the whole context, which no capture survives
};

struct arena_state {
  arena_state(device& device, const arena_config& configuration, cache_client& client, std::unique_ptr<policy> policy,
              arena_mutex& guard);

  const arena_config& config;
  arena_mutex& mutex;
  device& own_device;
  cache_client& caches;
  segment_observers observers;  ///< told without the lock
  budget pool_budget;
  guarded_policy pool_policy GPUMEM_GUARDED_BY(under_arena_lock);
  heap blocks GPUMEM_GUARDED_BY(under_arena_lock);
  stream_order streams;
  block_uses uses GPUMEM_GUARDED_BY(under_arena_lock);
  page_manager pages GPUMEM_GUARDED_BY(under_arena_lock);
  page_rules rules GPUMEM_GUARDED_BY(under_arena_lock);
  best_fit fits GPUMEM_GUARDED_BY(under_arena_lock);
  growth_gate gate GPUMEM_GUARDED_BY(under_arena_lock);
  calls_in_flight calls GPUMEM_GUARDED_BY(under_arena_lock);
  /// Of segments that left the heap, and that the driver has not taken back yet, or never will.
  std::uint64_t in_transit_bytes GPUMEM_GUARDED_BY(under_arena_lock) = 0;
  /// The counters; the bytes are filled in when asked.
  statistics counts GPUMEM_GUARDED_BY(under_arena_lock);
  flight_record flight GPUMEM_GUARDED_BY(under_arena_lock);

  /// Memory comes page by page.
  [[nodiscard]] bool paged() const noexcept GPUMEM_UNDER_LOCK { return rules.range_bytes != 0; }
  [[nodiscard]] pool_view view() const GPUMEM_UNDER_LOCK;
  /// Another thread is in a driver call that may bring memory: it grows, gives back, or records a fence.
  [[nodiscard]] bool in_flight() const noexcept GPUMEM_UNDER_LOCK {
    return gate.taken() || calls.give_backs.any() || calls.records.any() || calls.context_records.any();
  }
  /// How long the request may still wait. Its time begins with the first call.
  [[nodiscard]] const wait_deadline& deadline_of(pending_request& request) const {
    if (!request.deadline) request.deadline.emplace(own_device, config.free_wait_ns);
    return *request.deadline;
  }
  /// A live block among what is free for the request's owner; `no_block` where nothing fits.
  [[nodiscard]] block_index search(const pending_request& request) GPUMEM_UNDER_LOCK;
  /// False while a capture forbids to give memory back. Asks the device for one that gpumem has not noticed, for which
  /// the lock is given up.
  [[nodiscard]] bool may_give_back(arena_lock& lock) const GPUMEM_UNDER_LOCK;
  /// Keeps an event of the slow path: bytes, or nanoseconds of a wait.
  void note(slow_event kind, std::uint64_t amount) noexcept GPUMEM_UNDER_LOCK {
    flight.note(kind, amount, pool_budget.reserved());
  }
  /// The budget has grown by so many bytes that the pool holds now.
  void count_taken(std::uint64_t bytes) noexcept GPUMEM_UNDER_LOCK;

  /// Makes room for the records of one segment, and asks the driver for it without the lock; that room is kept.
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
