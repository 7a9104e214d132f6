// The budget of a process on one device, for a limit that also covers memory outside gpumem's segments.
//
// The pool gets the rest of the limit:
//   pool = limit - headroom - measured (contexts, modules) - counted (memory that the driver gave on request)
// A counted request is charged before the driver is called and lowers the pool's limit first: the pool returns idle
// memory to make room, and if that is not enough, the request is refused as the driver would refuse it. So the sum
// exceeds the limit only by memory that is measured afterwards, and the headroom covers that.
//
// Any thread; one lock per device, held while the pool returns idle memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"
#include "group_ledger.hpp"

namespace gpumem::preload {

class process_budget {
 public:
  /// Sets the limit of `pool`, which may be null, to the rest of the limit from here on. `measured_bytes`: the memory
  /// that the process already holds; a job counts it even if the account cannot be opened. `bad_setting` if the limit
  /// leaves nothing.
  /// `group`: is charged for counted bytes, too; may be null, and outlives this.
  status open(allocator* pool, std::uint64_t limit_bytes, std::uint64_t headroom_bytes, std::uint64_t measured_bytes,
              group_ledger* group);
  /// Takes over the counted bytes of `predecessor`, the device's account before there was a pool, and redirects later
  /// calls of `predecessor` to this account. Requires that `measured_bytes` of `open` did not include them.
  void take_over(process_budget& predecessor);
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_acquire); }

  /// Charges a request; false, with nothing changed, if it would exceed the limit.
  bool charge(std::uint64_t bytes);
  void refund(std::uint64_t bytes);
  /// Adds memory that the driver took, found by measuring.
  void add_measured(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t limit_bytes() const noexcept { return limit_; }
  [[nodiscard]] std::uint64_t counted_bytes() const;
  [[nodiscard]] std::uint64_t measured_bytes() const;
  /// Returns counted, measured and headroom bytes together.
  [[nodiscard]] std::uint64_t beside_bytes() const;

 private:
  [[nodiscard]] std::uint64_t beside_locked() const noexcept GPUMEM_REQUIRES(mutex_) {
    return headroom_ + measured_ + counted_;
  }
  /// False if the pool's memory does not fit in the rest of the limit.
  bool lower_pool() GPUMEM_REQUIRES(mutex_);
  /// False if the group's other members hold the requested memory.
  bool reserve_in_group(std::uint64_t bytes);

  mutable checked_mutex mutex_;
  std::atomic<bool> active_{false};
  process_budget* successor_ GPUMEM_GUARDED_BY(mutex_) = nullptr;
  // Set by `open`, before other threads see this object.
  allocator* pool_ = nullptr;
  group_ledger* group_ = nullptr;
  std::uint64_t limit_ = 0;
  std::uint64_t headroom_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t measured_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t counted_ GPUMEM_GUARDED_BY(mutex_) = 0;
};

/// The bytes and device behind each handle or address, so that each charge is refunded once.
class charge_table {
 public:
  /// Stores the charge of `handle`. `context`: the memory is freed with this context at the latest; 0: with no context.
  void keep(std::uint64_t handle, int ordinal, std::uint64_t bytes, std::uint64_t context = 0);
  /// A charge; `take` removes it and returns it, or returns an empty one if the handle is unknown.
  struct entry {
    int ordinal = -1;
    std::uint64_t bytes = 0;
    std::uint64_t context = 0;
  };
  entry take(std::uint64_t handle);
  /// Removes and returns the sum of the charges that end with the context; its `ordinal` is -1 if there are none.
  entry take_context(std::uint64_t context);
  /// Removes all charges of a device and returns their bytes.
  std::uint64_t take_all(int ordinal);

 private:
  checked_mutex mutex_;
  std::unordered_map<std::uint64_t, entry> charges_ GPUMEM_GUARDED_BY(mutex_);
};

/// Charges for physical pages. Pages live until every reference to their handle is released and nothing maps them.
class page_receipts {
 public:
  void created(std::uint64_t handle, int ordinal, std::uint64_t bytes);
  void retained(std::uint64_t handle);
  charge_table::entry released(std::uint64_t handle);
  void mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle);
  /// Calls `gone(entry)` for each run of pages that was freed by this unmapping.
  template <typename Gone>
  void unmapped(std::uint64_t address, std::uint64_t bytes, Gone&& gone);

 private:
  struct run {
    charge_table::entry receipt;
    unsigned handles = 1;
    unsigned mappings = 0;
  };
  /// Returns the charge to refund; its ordinal is -1 while the pages are still in use.
  charge_table::entry settle(std::unordered_map<std::uint64_t, run>::iterator position) GPUMEM_REQUIRES(mutex_);

  checked_mutex mutex_;
  std::unordered_map<std::uint64_t, run> runs_ GPUMEM_GUARDED_BY(mutex_);
  struct mapping {
    std::uint64_t bytes;
    std::uint64_t handle;
  };
  std::map<std::uint64_t, mapping> mappings_ GPUMEM_GUARDED_BY(mutex_);
};

template <typename Gone>
void page_receipts::unmapped(std::uint64_t address, std::uint64_t bytes, Gone&& gone) {
  const mutex_lock lock{mutex_};
  for (auto position = mappings_.lower_bound(address);
       position != mappings_.end() && position->first - address < bytes;) {
    const auto found = runs_.find(position->second.handle);
    position = mappings_.erase(position);
    if (found == runs_.end()) continue;
    --found->second.mappings;
    if (const charge_table::entry done = settle(found); done.ordinal >= 0) gone(done);
  }
}

}  // namespace gpumem::preload
