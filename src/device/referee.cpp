#include "referee.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace gpumem {
namespace {

address end_of(address begin, std::uint64_t bytes) { return bytes > UINT64_MAX - begin ? UINT64_MAX : begin + bytes; }

}  // namespace

std::string_view to_string(hazard_kind kind) noexcept {
  constexpr std::string_view names[] = {"early_reuse", "overlap", "use_after_free"};
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(names) ? names[index] : "unknown hazard";
}

std::string hazard::to_string() const {
  return fmt::format("{} at {} ns: {} bytes at {:#x}, user stream {}, receiver stream {}", gpumem::to_string(kind),
                     at_ns, bytes, at, user.handle, receiver.handle);
}

// --- calls of the program ------------------------------------------------------------------------------------

void referee::handed_out(address begin, std::uint64_t bytes, stream_ref receiver, work_point point) {
  if (bytes == 0) return;
  const address end = end_of(begin, bytes);
  check_held(begin, end, hazard_kind::overlap, receiver);
  handed_out_.insert_or_assign(begin, holding{end, receiver});
  if (!memory_.accessible(begin, end)) report(hazard_kind::use_after_free, begin, end, receiver, receiver);

  auto entry = split(begin, end);
  check(entry, end, hazard_kind::early_reuse, point.stream, receiver);
  if (point.stream == sim_streams::no_stream) return;
  if (entry == regions_.end() || entry->first != begin) entry = regions_.emplace_hint(entry, begin, region{});
  entry->second.end = end;
  entry->second.use = point;
  entry->second.more.clear();
  entry->second.elsewhere = false;
  auto last = ++entry;
  while (last != regions_.end() && last->first < end) ++last;
  regions_.erase(entry, last);
}

void referee::used(address begin, std::uint64_t bytes, work_point point) {
  if (bytes == 0) return;
  const address end = end_of(begin, bytes);
  if (!memory_.accessible(begin, end)) {
    report(hazard_kind::use_after_free, begin, end, streams_.handle_of(point.stream), {});
  }
  auto entry = split(begin, end);
  for (address next = begin; next < end; ++entry) {
    if (entry == regions_.end() || entry->first != next) {
      const address gap_end = entry == regions_.end() ? end : std::min(end, entry->first);
      entry = regions_.emplace_hint(entry, next, region{.end = gap_end, .use = point, .more = {}});
    } else {
      add_use(entry->second, point);
      entry->second.elsewhere = false;
    }
    next = entry->second.end;
  }
}

void referee::mapped_again(address source, address target, std::uint64_t bytes) {
  const address end = end_of(source, bytes);
  std::vector<std::pair<address, region>> uses;
  for (auto entry = split(source, end); entry != regions_.end() && entry->first < end; ++entry) {
    region copy = entry->second;
    copy.end = target + (copy.end - source);
    copy.elsewhere = true;
    uses.emplace_back(target + (entry->first - source), std::move(copy));
  }
  for (auto& [begin, use] : uses) regions_.insert_or_assign(begin, std::move(use));
}

void referee::taken_away(address begin, std::uint64_t bytes) {
  const address end = end_of(begin, bytes);
  check_held(begin, end, hazard_kind::use_after_free, {});
  for (auto entry = split(begin, end); entry != regions_.end() && entry->first < end;) {
    entry = entry->second.elsewhere ? regions_.erase(entry) : std::next(entry);
  }
  auto first = regions_.lower_bound(begin);
  check(first, end, hazard_kind::use_after_free, sim_streams::no_stream, {});
  auto last = first;
  while (last != regions_.end() && last->first < end) ++last;
  regions_.erase(first, last);
}

// --- regions -------------------------------------------------------------------------------------------------

void referee::split_at(address position) {
  auto entry = regions_.lower_bound(position);
  if (entry == regions_.begin()) return;
  auto before = std::prev(entry);
  if (before->second.end <= position) return;
  region right = before->second;
  before->second.end = position;
  regions_.emplace_hint(entry, position, std::move(right));
}

referee::region_map::iterator referee::split(address begin, address end) {
  auto entry = regions_.find(begin);
  if (entry != regions_.end() && entry->second.end == end) return entry;
  split_at(begin);
  split_at(end);
  return regions_.lower_bound(begin);
}

void referee::add_use(region& touched, work_point point) const {
  const auto comes_first = [&](work_point use) { return streams_.comes_first(use, point.stream); };
  std::erase_if(touched.more, comes_first);
  if (comes_first(touched.use)) {
    touched.use = point;
  } else {
    touched.more.push_back(point);
  }
}

// --- checks --------------------------------------------------------------------------------------------------

void referee::check_held(address begin, address end, hazard_kind kind, stream_ref receiver) {
  auto entry = handed_out_.lower_bound(begin);
  if (entry != handed_out_.begin() && std::prev(entry)->second.end > begin) --entry;
  while (entry != handed_out_.end() && entry->first < end) {
    report(kind, std::max(begin, entry->first), std::min(end, entry->second.end), entry->second.holder, receiver);
    entry = handed_out_.erase(entry);
  }
}

void referee::check_use(const region_map::value_type& entry, work_point use, std::uint32_t stream) {
  if (streams_.comes_first(use, stream)) return;
  for (offence& known : offences_) {
    if (known.stream == use.stream) {
      known.end = entry.second.end;
      return;
    }
  }
  offences_.push_back({use.stream, entry.first, entry.second.end});
}

void referee::check(region_map::iterator first, address end, hazard_kind kind, std::uint32_t stream,
                    stream_ref receiver) {
  offences_.clear();
  for (auto entry = first; entry != regions_.end() && entry->first < end; ++entry) {
    check_use(*entry, entry->second.use, stream);
    for (const work_point& use : entry->second.more) check_use(*entry, use, stream);
  }
  for (const offence& o : offences_) {
    report(kind, o.begin, o.end, streams_.handle_of(o.stream), receiver);
  }
}

void referee::report(hazard_kind kind, address begin, address end, stream_ref user, stream_ref receiver) {
  ++hazard_count_;
  if (hazards_.size() >= kept_hazards) return;
  hazards_.push_back({.kind = kind,
                      .at = begin,
                      .bytes = end - begin,
                      .user = user,
                      .receiver = receiver,
                      .at_ns = streams_.now_ns()});
}

}  // namespace gpumem
