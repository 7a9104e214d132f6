#include "ledger.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gpumem::preload {

status ledger::open(allocator* pool, std::uint64_t limit_bytes, std::uint64_t headroom_bytes,
                    std::uint64_t measured_bytes, shared_budget* group) {
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

void ledger::take_over(ledger& from) {
  const mutex_lock theirs{from.mutex_};
  const mutex_lock own{mutex_};
  if (from.group_ != nullptr) from.group_->leave(from.measured_);
  counted_ += from.counted_;
  from.measured_ = from.counted_ = 0;
  from.successor_ = this;
  static_cast<void>(lower_pool());
}

bool ledger::lower_pool() {
  if (pool_ == nullptr) return true;
  const std::uint64_t left = limit_ > beside_locked() ? limit_ - beside_locked() : 0;
  const result<limit_result> set = pool_->set_limit(0, std::max<std::uint64_t>(left, 1));
  return set.ok() && set->reserved_bytes <= left;
}

bool ledger::reserve_in_group(std::uint64_t bytes) {
  if (group_ == nullptr || group_->reserve(bytes)) return true;
  if (pool_ == nullptr) return false;
  const result<trim_result> trimmed = pool_->trim(0, bytes);
  return trimmed && trimmed->returned_bytes != 0 && group_->reserve(bytes);
}

bool ledger::charge(std::uint64_t bytes) {
  if (bytes == 0) return true;
  const mutex_lock lock{mutex_};
  if (successor_ != nullptr) return successor_->charge(bytes);
  if (bytes > limit_ || beside_locked() > limit_ - bytes) return false;
  counted_ += bytes;
  if (lower_pool() && reserve_in_group(bytes)) return true;
  counted_ -= bytes;
  static_cast<void>(lower_pool());  // back to what it was
  return false;
}

void ledger::refund(std::uint64_t bytes) {
  const mutex_lock lock{mutex_};
  if (successor_ != nullptr) return successor_->refund(bytes);
  if (!active()) return;
  const std::uint64_t gone = std::min(bytes, counted_);
  counted_ -= gone;
  if (group_ != nullptr) group_->give_back(gone);
  static_cast<void>(lower_pool());
}

void ledger::add_measured(std::uint64_t bytes) {
  const mutex_lock lock{mutex_};
  if (successor_ != nullptr) return successor_->add_measured(bytes);
  measured_ += bytes;
  if (group_ != nullptr) group_->enter(bytes);
  static_cast<void>(lower_pool());  // what is there is there; the pool has so much less
}

std::uint64_t ledger::beside_bytes() const {
  const mutex_lock lock{mutex_};
  return beside_locked();
}

std::uint64_t ledger::counted_bytes() const {
  const mutex_lock lock{mutex_};
  return counted_;
}

std::uint64_t ledger::measured_bytes() const {
  const mutex_lock lock{mutex_};
  return measured_;
}

void receipts::keep(std::uint64_t handle, int ordinal, std::uint64_t bytes, std::uint64_t context) {
  const mutex_lock lock{mutex_};
  of_[handle] = {ordinal, bytes, context};
}

receipts::entry receipts::take_context(std::uint64_t context) {
  const mutex_lock lock{mutex_};
  entry out;
  std::erase_if(of_, [&](const auto& one) {
    if (context == 0 || one.second.context != context) return false;
    out.ordinal = one.second.ordinal;
    out.bytes += one.second.bytes;
    return true;
  });
  return out;
}

receipts::entry receipts::take(std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  const auto at = of_.find(handle);
  if (at == of_.end()) return {};
  const entry out = at->second;
  of_.erase(at);
  return out;
}

std::uint64_t receipts::take_all(int ordinal) {
  const mutex_lock lock{mutex_};
  std::uint64_t bytes = 0;
  std::erase_if(of_, [&](const auto& one) {
    if (one.second.ordinal != ordinal) return false;
    bytes += one.second.bytes;
    return true;
  });
  return bytes;
}

void page_receipts::created(std::uint64_t handle, int ordinal, std::uint64_t bytes) {
  const mutex_lock lock{mutex_};
  runs_[handle] = run{.what = {ordinal, bytes}};
}

void page_receipts::retained(std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  if (const auto at = runs_.find(handle); at != runs_.end()) ++at->second.handles;
}

receipts::entry page_receipts::released(std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  const auto at = runs_.find(handle);
  if (at == runs_.end() || at->second.handles == 0) return {};
  --at->second.handles;
  return settle(at);
}

void page_receipts::mapped(std::uint64_t at, std::uint64_t bytes, std::uint64_t handle) {
  const mutex_lock lock{mutex_};
  const auto of = runs_.find(handle);
  if (of == runs_.end()) return;
  ++of->second.mappings;
  mappings_[at] = {bytes, handle};
}

receipts::entry page_receipts::settle(std::unordered_map<std::uint64_t, run>::iterator at) {
  if (at->second.handles != 0 || at->second.mappings != 0) return {};
  const receipts::entry out = at->second.what;
  runs_.erase(at);
  return out;
}

}  // namespace gpumem::preload
