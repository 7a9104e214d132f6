#include "value_marks.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace gpumem::simcuda {

value_marks& the_value_marks() {
  static auto* const only = new value_marks;  // used until the process ends
  return *only;
}

/// Returns the first range that ends after the address.
value_marks::ranges_by_begin::const_iterator value_marks::first_behind(std::uint64_t address) const {
  auto found = ranges_.upper_bound(address);
  if (found != ranges_.begin()) {
    const auto before = std::prev(found);
    if (before->second.end > address) return before;
  }
  return found;
}

void value_marks::erase_locked(std::uint64_t begin, std::uint64_t end) {
  auto found = ranges_.lower_bound(begin);
  if (found != ranges_.begin()) {
    const auto before = std::prev(found);
    const range old = before->second;
    if (old.end > begin) {
      before->second.end = begin;
      if (old.end > end) ranges_.emplace(end, old);
    }
  }
  while (found != ranges_.end() && found->first < end) {
    const range old = found->second;
    found = ranges_.erase(found);
    if (old.end > end) {
      ranges_.emplace(end, old);
      break;
    }
  }
}

void value_marks::set_locked(std::uint64_t begin, std::uint64_t end, range value) {
  erase_locked(begin, end);
  value.end = end;
  const auto same = [&](const range& neighbour) {
    const bool both_true = (neighbour.epoch >= epoch_) == (value.epoch >= epoch_);
    return both_true && neighbour.zero_due == value.zero_due;
  };
  const auto next = ranges_.lower_bound(end);
  if (next != ranges_.end() && next->first == end && same(next->second)) {
    value.end = next->second.end;
    ranges_.erase(next);
  }
  const auto following = ranges_.lower_bound(begin);
  if (following != ranges_.begin()) {
    const auto before = std::prev(following);
    if (before->second.end == begin && same(before->second)) {
      before->second.end = value.end;
      return;
    }
  }
  ranges_.emplace(begin, value);
}

void value_marks::set(std::uint64_t begin, std::uint64_t bytes, value_mark mark) {
  if (bytes == 0) return;
  const std::lock_guard lock{mutex_};
  set_locked(begin, begin + bytes, {.zero_due = mark.zero_due, .epoch = mark.computed ? epoch_ : 0});
}

void value_marks::erase(std::uint64_t begin, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock{mutex_};
  erase_locked(begin, begin + bytes);
}

void value_marks::copy(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes) {
  if (bytes == 0 || dst == src) return;
  const std::lock_guard lock{mutex_};
  struct piece {
    std::uint64_t begin;
    range value;
  };
  std::vector<piece> pieces;
  for (auto entry = first_behind(src); entry != ranges_.end() && entry->first < src + bytes; ++entry) {
    const std::uint64_t begin = std::max(entry->first, src);
    range value = entry->second;
    value.end = std::min(value.end, src + bytes) - src + dst;
    pieces.push_back({begin - src + dst, value});
  }
  erase_locked(dst, dst + bytes);
  for (const piece& each : pieces) set_locked(each.begin, each.value.end, each.value);
}

void value_marks::doubt_all() {
  const std::lock_guard lock{mutex_};
  ++epoch_;
}

template <typename Holds>
bool value_marks::all(std::uint64_t begin, std::uint64_t bytes, Holds&& holds) const {
  if (bytes == 0) return true;
  const std::lock_guard lock{mutex_};
  std::uint64_t address = begin;
  for (auto entry = first_behind(begin); address < begin + bytes; ++entry) {
    if (entry == ranges_.end() || entry->first > address || !holds(entry->second)) return false;
    address = entry->second.end;
  }
  return true;
}

bool value_marks::all_computed(std::uint64_t begin, std::uint64_t bytes) const {
  return all(begin, bytes, [this](const range& each) { return each.epoch >= epoch_; });
}

bool value_marks::all_zero_due(std::uint64_t begin, std::uint64_t bytes) const {
  return all(begin, bytes, [](const range& each) { return each.zero_due; });
}

bool value_marks::write_zeros(std::uint64_t begin, std::uint64_t bytes) {
  const std::lock_guard lock{mutex_};
  std::vector<std::pair<std::uint64_t, range>> due;
  bool all_true = true;
  std::uint64_t marked_to = begin;
  for (auto entry = first_behind(begin); entry != ranges_.end() && entry->first < begin + bytes; ++entry) {
    all_true = all_true && entry->first <= marked_to && entry->second.epoch >= epoch_;
    marked_to = entry->second.end;
    if (!entry->second.zero_due) continue;
    range value = entry->second;
    value.end = std::min(value.end, begin + bytes);
    due.emplace_back(std::max(entry->first, begin), value);
  }
  for (auto& [at, value] : due) {
    std::memset(reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)), 0, value.end - at);
    value.zero_due = false;
    set_locked(at, value.end, value);
  }
  return all_true && (bytes == 0 || marked_to >= begin + bytes);
}

std::size_t value_marks::ranges() const {
  const std::lock_guard lock{mutex_};
  return ranges_.size();
}

}  // namespace gpumem::simcuda
