// What a process has on a device beside gpumem's own segments, where a limit is on that, too.
//
// The limit of the pool is what the rest leaves of the whole:
//   pool = limit - headroom - measured (contexts, modules) - counted (what the driver gave on request)
// A counted request is entered before the driver is asked, and lowers the pool's limit first: idle memory goes back for
// it, and where that is not enough the request is refused, as the driver would. So the sum never exceeds the limit but
// by what is measured only afterwards, for which the headroom stands.
// Any thread; one lock a device, held while the pool gives idle memory back.
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
  /// Sets the limit of `pool`, which may be null, to what the rest leaves of the whole from here on. `measured_bytes`:
  /// the memory that the process has already; a job counts it even where the account cannot be opened.
  /// `bad_setting` where the limit leaves nothing.
  /// `group`: counts counted bytes, too; may be null, and outlives this.
  status open(allocator* pool, std::uint64_t limit_bytes, std::uint64_t headroom_bytes, std::uint64_t measured_bytes,
              shared_budget* group);
  /// Takes the counted bytes of `predecessor`, the account of the same device before there was a pool. Calls of
  /// `predecessor` are for this account afterwards. Requires that `measured_bytes` of `open` held no counted bytes of
  /// `predecessor`.
  void take_over(process_budget& predecessor);
  [[nodiscard]] bool active() const noexcept { return active_.load(std::memory_order_acquire); }

  /// Enters a request; false: over the limit, and nothing is changed.
  bool charge(std::uint64_t bytes);
  void refund(std::uint64_t bytes);
  /// What the driver turned out to have taken.
  void add_measured(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t limit_bytes() const noexcept { return limit_; }
  [[nodiscard]] std::uint64_t counted_bytes() const;
  [[nodiscard]] std::uint64_t measured_bytes() const;
  /// Counted, measured and headroom together.
  [[nodiscard]] std::uint64_t beside_bytes() const;

 private:
  [[nodiscard]] std::uint64_t beside_locked() const noexcept GPUMEM_REQUIRES(mutex_) {
    return headroom_ + measured_ + counted_;
  }
  /// False where the pool holds more in live blocks than this leaves.
  bool lower_pool() GPUMEM_REQUIRES(mutex_);
  /// False where the group's other members have what is asked for.
  bool reserve_in_group(std::uint64_t bytes);

  mutable checked_mutex mutex_;
  std::atomic<bool> active_{false};
  process_budget* successor_ GPUMEM_GUARDED_BY(mutex_) = nullptr;
  // Of `open`, before anybody else knows of this.
  allocator* pool_ = nullptr;
  shared_budget* group_ = nullptr;
  std::uint64_t limit_ = 0;
  std::uint64_t headroom_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t measured_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t counted_ GPUMEM_GUARDED_BY(mutex_) = 0;
};

/// Which handle or address stands for how many bytes on which device, so that they are refunded once.
class charge_table {
 public:
  /// `context`: the memory ends with this context at the latest; 0: with none.
  void keep(std::uint64_t handle, int ordinal, std::uint64_t bytes, std::uint64_t context = 0);
  /// Of the handle, if it is known; it is not afterwards.
  struct entry {
    int ordinal = -1;
    std::uint64_t bytes = 0;
    std::uint64_t context = 0;
  };
  entry take(std::uint64_t handle);
  /// The sum of all that ends with the context; its `ordinal` is -1 where there is none.
  entry take_context(std::uint64_t context);
  /// All of a device's.
  std::uint64_t take_all(int ordinal);

 private:
  checked_mutex mutex_;
  std::unordered_map<std::uint64_t, entry> charges_ GPUMEM_GUARDED_BY(mutex_);
};

/// Physical pages live until their handle is released as often as it was given out, and nothing maps them any more.
class page_receipts {
 public:
  void created(std::uint64_t handle, int ordinal, std::uint64_t bytes);
  void retained(std::uint64_t handle);
  charge_table::entry released(std::uint64_t handle);
  void mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle);
  /// Calls `gone(entry)` for each run of pages that nothing holds any more.
  template <typename Gone>
  void unmapped(std::uint64_t address, std::uint64_t bytes, Gone&& gone);

 private:
  struct run {
    charge_table::entry receipt;
    unsigned handles = 1;
    unsigned mappings = 0;
  };
  /// What is to be refunded; an ordinal of -1: nothing yet.
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
