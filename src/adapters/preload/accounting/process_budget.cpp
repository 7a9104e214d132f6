#include "process_budget.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gpumem::preload {

status process_budget::open(allocator* pool, std::uint64_t limit_bytes, std::uint64_t headroom_bytes,
                            std::uint64_t measured_bytes, group_ledger* group) {
  const mutex_lock lock{mutex_};
  group_ = group;
  measured_ = measured_bytes;
  if (group_ != nullptr) group_->enter(measured_bytes);
  if (headroom_bytes >= limit_bytes || measured_bytes >= limit_bytes - headroom_bytes) {
    return {errc::bad_setting,
            fmt::format("GPUMEM_LIMIT={} on the whole process: its context and modules take {} and GPUMEM_HEADROOM is "
                        "{}; expected more than {}",
                        format_bytes(limit_bytes), format_bytes(measured_bytes), format_bytes(headroom_bytes),
                        format_bytes(measured_bytes + headroom_bytes))};
  }
  pool_ = pool;
  limit_ = limit_bytes;
  headroom_ = headroom_bytes;
  active_.store(true, std::memory_order_release);
  return pool != nullptr ? pool->set_limit(0, limit_bytes - headroom_bytes - measured_bytes).why() : status{};
}

void process_budget::take_over(process_budget& predecessor) {
  const mutex_lock theirs{predecessor.mutex_};
  const mutex_lock own{mutex_};
  if (predecessor.group_ != nullptr) predecessor.group_->leave(predecessor.measured_);
  counted_ += predecessor.counted_;
  predecessor.measured_ = predecessor.counted_ = 0;
  predecessor.successor_ = this;
  static_cast<void>(lower_pool());
}

bool process_budget::lower_pool() {
  if (pool_ == nullptr) return true;
  const std::uint64_t left = limit_ > beside_locked() ? limit_ - beside_locked() : 0;
  const result<limit_result> set = pool_->set_limit(0, std::max<std::uint64_t>(left, 1));
  return set.ok() && set->reserved_bytes <= left;
}

bool process_budget::reserve_in_group(std::uint64_t bytes) {
  if (group_ == nullptr || group_->reserve(bytes)) return true;
  if (pool_ == nullptr) return false;
  const result<trim_result> trimmed = pool_->trim(0, bytes);
  return trimmed && trimmed->returned_bytes != 0 && group_->reserve(bytes);
}

bool process_budget::charge(std::uint64_t bytes) {
  if (bytes == 0) return true;
  const mutex_lock lock{mutex_};
  if (successor_ != nullptr) return successor_->charge(bytes);
  if (bytes > limit_ || beside_locked() > limit_ - bytes) return false;
  counted_ += bytes;
  if (lower_pool() && reserve_in_group(bytes)) return true;
  counted_ -= bytes;
  static_cast<void>(lower_pool());  // restore the former limit
  return false;
}

void process_budget::refund(std::uint64_t bytes) {
  const mutex_lock lock{mutex_};
  if (successor_ != nullptr) return successor_->refund(bytes);
  if (!active()) return;
  const std::uint64_t gone = std::min(bytes, counted_);
  counted_ -= gone;
  if (group_ != nullptr) group_->give_back(gone);
  static_cast<void>(lower_pool());
}

void process_budget::add_measured(std::uint64_t bytes) {
  const mutex_lock lock{mutex_};
  if (successor_ != nullptr) return successor_->add_measured(bytes);
  measured_ += bytes;
  if (group_ != nullptr) group_->enter(bytes);
  static_cast<void>(lower_pool());  // the memory is already taken, so the pool shrinks by it
}

std::uint64_t process_budget::beside_bytes() const {
  const mutex_lock lock{mutex_};
  return beside_locked();
}

std::uint64_t process_budget::counted_bytes() const {
  const mutex_lock lock{mutex_};
  return counted_;
}

std::uint64_t process_budget::measured_bytes() const {
  const mutex_lock lock{mutex_};
  return measured_;
}

void charge_table::keep(std::uint64_t handle, int ordinal, std::uint64_t bytes, std::uint64_t context) {
  const mutex_lock lock{mutex_};
  charges_[handle] = {ordinal, bytes, context};
}

charge_table::entry charge_table::take_context(std::uint64_t context) {
  const mutex_lock lock{mutex_};
  entry sum;
  std::erase_if(charges_, [&](const auto& item) {
    if (context == 0 || item.second.context != context) return false;
    sum.ordinal = item.second.ordinal;
    sum.bytes += item.second.bytes;
    return true;
  });
  return sum;
}

charge_table::entry charge_table::take(std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  const auto found = charges_.find(handle);
  if (found == charges_.end()) return {};
  const entry taken = found->second;
  charges_.erase(found);
  return taken;
}

std::uint64_t charge_table::take_all(int ordinal) {
  const mutex_lock lock{mutex_};
  std::uint64_t bytes = 0;
  std::erase_if(charges_, [&](const auto& item) {
    if (item.second.ordinal != ordinal) return false;
    bytes += item.second.bytes;
    return true;
  });
  return bytes;
}

void page_receipts::created(std::uint64_t handle, int ordinal, std::uint64_t bytes) {
  const mutex_lock lock{mutex_};
  runs_[handle] = run{.receipt = {ordinal, bytes}};
}

void page_receipts::retained(std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  if (const auto found = runs_.find(handle); found != runs_.end()) ++found->second.handles;
}

charge_table::entry page_receipts::released(std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  const auto found = runs_.find(handle);
  if (found == runs_.end() || found->second.handles == 0) return {};
  --found->second.handles;
  return settle(found);
}

void page_receipts::mapped(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  const auto found = runs_.find(handle);
  if (found == runs_.end()) return;
  ++found->second.mappings;
  mappings_[address] = {bytes, handle};
}

charge_table::entry page_receipts::settle(std::unordered_map<std::uint64_t, run>::iterator position) {
  if (position->second.handles != 0 || position->second.mappings != 0) return {};
  const charge_table::entry settled = position->second.receipt;
  runs_.erase(position);
  return settled;
}

}  // namespace gpumem::preload
